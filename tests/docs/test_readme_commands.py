"""Every command that the documentation shows, in blocks marked ```bash, is checked here.

What is cheap is really run. A training that a tutorial's file describes is run as far as `--dry-run`, which reads the
configuration and the tasks and imports the workflow and the judge. The rest is parsed by the command line's own
parser, and `RUN_ELSEWHERE` says where it is run for real. A command of a kind that is not known here fails.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
import typer
from shown_files import PAGES, ROOT, files_of

from astune.cli.app import app, with_values

RUN_ELSEWHERE = {
    "make install": "every other target depends on it",
    "make demo": "make bench-learning trains and measures the same configuration; tests/install runs it shortened",
    "make test": "it runs this test",
    "make check": "its four parts are run before every commit",
    "make env-verl": "tests/backbone/test_verl_equality.py runs in it",
    "make env-trinity": "tests/backbone/test_trinity_equality.py runs in it",
    "make e2e-install": "itself a test, too long for make test: tests/install",
    "make appworld": "tests/tutorial/test_example_appworld.py, among the tests marked e2e",
    "make pictures": "tests/viewer/test_tokens_page.py, into another folder",
    "scripts/install_debian.sh": "tests/sandbox/test_install_debian.py, as far as --dry-run",
    "astune demo": "tests/install, shortened",
    "astune --resume": "tests/cli/test_a_whole_run.py",
    "astune report": "tests/cli/test_a_whole_run.py",
    "astune export-metrics": "tests/cli/test_export_metrics.py",
    "astune export": "tests/cli/test_a_whole_run.py",
    "astune chat": "tests/cli/test_a_whole_run.py",
    "astune eval": "tests/cli/test_a_whole_run.py",
    "astune check numerics": "tests/numerics/test_command.py",
    "astune check template": "tests/cli/test_check_template.py",
    "astune check judge": "tests/cli/test_check_judge.py",
    "astune rubrics learn": "tests/rubrics/test_rubrics.py",
    "astune rubrics check": "tests/rubrics/test_rubrics.py",
    "astune data from-docs": "tests/data_generator/test_from_docs.py",
    "astune data measure": "tests/cli/test_measure.py",
    "astune data expand": "tests/data_generator/test_expand.py",
    "astune optimize-prompt": "tests/backbone/test_e2e_prompt_search.py, among the tests marked e2e",
    "astune sft": "tests/cli/test_sft.py",
    "astune dpo": "tests/cli/test_dpo.py",
    "astune sweep": "tests/cli/test_sweep.py; with --ray tests/cli/test_e2e_sweep.py, among the tests marked e2e",
    "astune serve": "tests/feedback/test_serve.py",
    "astune feedback import": "tests/feedback/test_feedback.py",
    "astune flywheel": "tests/flywheel/test_turn.py",
    "astune replay": "tests/cli/test_a_whole_run.py, tests/cli/test_debug.py",
    "astune clean": "tests/cli/test_a_whole_run.py",
    "astune view": "tests/viewer, every test of which starts it or its server",
    "astune --kill": "tests/processes/test_records.py",
    "astune doctor": "tests/cli/test_doctor.py",
    ".venv-verl/bin/ray start": "tests/backbone/tiny_runs.py starts Ray's nodes so, with a port of their own",
    "python -m vllm.entrypoints.openai.api_server": "tests/backbone/test_e2e_vllm.py, as a run starts it",
    "astune --conf tutorial/example_appworld/appworld.yaml": "tests/tutorial/test_example_appworld.py, in debug",
    "astune --conf tutorial/example_math_agent/worked.yaml": "tests/tutorial/test_worked_rows.py",
}
MAKE_TOO_LONG = re.compile(r"make (bench-\S+|\S*vllm\S*|lock|format|docs|clean)$")
"""Benchmarks, which write their own results, and targets that change the working tree."""
NOT_OURS = (
    *(
        "appworld",
        "cat",
        "cd",
        "curl",
        "export",
        "git",
        "ls",
        "mkdir",
        "python3",
        "source",
        "tail",
        "tensorboard",
        "uv",
    ),
)


def shown_commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line in a ```bash block, continued lines joined."""
    for page in PAGES:
        for block in re.findall(r"^\s*```bash\n(.*?)^\s*```", page.read_text(encoding="utf-8"), re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    words = shlex.split(part.removeprefix("$ "), comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words = words[1:]
                    if words:
                        yield page.name, shlex.join(words)


COMMANDS = sorted({command for _, command in shown_commands()})


def words_of(command: str) -> list[str]:
    """The command's words, where all doors to `astune` look the same."""
    words = shlex.split(command)
    if words[:2] == ["python", "launcher.py"]:
        return ["astune", *words[2:]]
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def is_dry_run(words: list[str]) -> bool:
    """A training that can be run as far as `--dry-run`: the demo, or a file of this repository.

    One from a model that the command above it makes cannot.
    """
    if words[0] != "astune" or {"--resume", "doctor", "--with-appworld", "model.path=worked_model"} & set(words):
        return False
    return words[1:2] == ["demo"] or ("--conf" in words and (ROOT / words[words.index("--conf") + 1]).is_file())


def is_cheap(words: list[str]) -> bool:
    return words[0] == "astune" and bool({"--help", "--version", "explain"} & set(words))


def run(words: list[str], **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "launcher.py", *words[1:]],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_pages_show_commands():
    assert {page for page, _ in shown_commands()} >= {"README.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize("command", [c for c in COMMANDS if is_cheap(words_of(c))])
def test_a_cheap_command_runs(command):
    run(words_of(command))


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if is_dry_run(words_of(c))])
def test_a_training_runs_as_far_as_its_plan(command, request, tmp_path):
    words = words_of(command)
    variables: dict[str, str] = {}
    if any(word.endswith("math_agent.yaml") for word in words):
        variables = {"HF_ENDPOINT": request.getfixturevalue("gsm8k_hub").address, "ASTUNE_CACHE": str(tmp_path)}
    for engine in {"verl", "trinity"} & set(words):
        if not (ROOT / f".venv-{engine}" / "bin" / "python").is_file():
            pytest.skip(f"the plan is made in an environment of its own: make env-{engine}")
    run(words if "--dry-run" in words else [*words, "--dry-run"], **variables)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_exists_and_is_run_somewhere(command):
    words = words_of(command)
    known = any(command == listed or " ".join(words).startswith(f"{listed} ") for listed in RUN_ELSEWHERE)
    if words[0] == "astune":
        parse(words[1:])
        needs_own_file = "--conf" in words and "tutorial/" not in command
        assert known or is_cheap(words) or is_dry_run(words) or needs_own_file or len(words) == 1, (
            f"say in RUN_ELSEWHERE where `{command}` is run"
        )
    elif words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert all(word in targets for word in words[1:] if "=" not in word)
        assert known or MAKE_TOO_LONG.match(command), f"say in RUN_ELSEWHERE where `{command}` is run"
    elif words[0].startswith("scripts/"):
        assert os.access(ROOT / words[0], os.X_OK), f"`{command}` names no program"
        assert known, f"say in RUN_ELSEWHERE where `{command}` is run"
    elif words[0] == ".venv-verl/bin/ray":
        assert known, f"say in RUN_ELSEWHERE where `{command}` is run"
    elif words[0] == "python":
        assert known or is_python_file_or_module(words[1:]), f"`{command}` names nothing that is there"
    elif words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"[a-z]+", "".join(re.findall(r"\[(.*?)\]", command)))) <= set(extras)
    else:
        assert words[0] in NOT_OURS, f"`{command}` is of no kind that is known here"


def parse(arguments: list[str]) -> None:
    """Let the command line's own parser read the arguments; nothing is called."""
    root = typer.main.get_command(app)
    context = root.make_context("astune", with_values(arguments), resilient_parsing=False)
    command, rest = root, [*context._protected_args, *context.args]
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest[0]]
        if not hasattr(command, "commands"):
            command.make_context(rest[0], rest[1:])
        rest = rest[1:]


def is_python_file_or_module(arguments: list[str]) -> bool:
    if arguments[0] == "-m":
        return importlib.util.find_spec(arguments[1]) is not None
    return (ROOT / arguments[0]).is_file() or any(arguments[0] in files_of(page) for page in PAGES)
