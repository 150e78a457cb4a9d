"""The command line as a user meets it: help, mistakes, exit statuses. Nothing is trained here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ports import free_port

from astune.cli.app import with_values
from astune.runs import RunDirectory
from astune.schema import ConfigError, JudgeError, install_extra

ROOT = Path(__file__).parents[2]
WORKFLOW = """
from astune.workflow import Workflow

class Agent(Workflow):
    async def execute(self, task, proxy): ...

class WithoutTheMethod(Workflow):
    async def exekute(self, task, proxy): ...
"""
ROW = '{{"main_query": "one and one?", "task_id": "{}"}}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with an agent and its tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "agent.py").write_text(WORKFLOW)
    (tmp_path / "tasks.jsonl").write_text("".join(ROW.format(number) for number in range(8)))
    (tmp_path / "agent.yaml").write_text(
        """
astune:
  rollout: {workflow: agent.py->Agent}
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
"""
    )
    return tmp_path


@pytest.mark.slow
def test_help_takes_little_longer_than_typer_itself():
    """A ratio, as the machine's speed is not ours: at most twice what importing the library for the help takes."""
    ratios = []
    for _ in range(5):
        alone = _processor_seconds("-c", "import typer.rich_utils")
        ratios.append(_processor_seconds("launcher.py", "--help") / alone)
    assert sorted(ratios)[2] < 2, ratios


def _processor_seconds(*words: str) -> float:
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    usage = os.wait4(process.pid, 0)[2]
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("code", ["import astune", "from astune.cli.app import run; run(['--help'])"])
def test_neither_the_package_nor_help_imports_torch_or_an_agent_framework(code):
    check = "import sys; sys.exit(', '.join({'torch', 'transformers', 'agentscope', 'numpy'} & set(sys.modules)))"
    script = f"try:\n    {code}\nexcept SystemExit: pass\n{check}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr.strip(), done.stderr


def test_every_flag_and_command_is_in_the_help(astune):
    status, out, _ = astune("--help")
    assert status == 0
    for word in (
        "--conf",
        "--backbone",
        "--resume",
        "--dry-run",
        "--set",
        "demo",
        "report",
        "clean",
        "export",
        "replay",
        "chat",
        "eval",
        "config",
    ):
        assert word in out
    assert astune()[1] == out


@pytest.mark.slow
def test_the_launcher_is_the_same_command():
    outputs = [
        subprocess.run(
            [sys.executable, *command, "--version"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for command in (["launcher.py"], ["-c", "from astune.cli import main; main()"])
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("astune ")


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (["--resume"], ["--resume", "newest"]),
        (["--resume", "--dry-run"], ["--resume", "newest", "--dry-run=short"]),
        (["--dry-run=full"], ["--dry-run=full"]),
        (["--resume", "launcher_record/x"], ["--resume", "launcher_record/x"]),
        (
            ["--conf", "a.yaml", "--resume", "--set", "seed=1"],
            ["--conf", "a.yaml", "--resume", "newest", "--set", "seed=1"],
        ),
        (["--conf", "a.yaml"], ["--conf", "a.yaml"]),
    ],
)
def test_resume_and_dry_run_take_a_value_or_none(written, means):
    assert with_values(written) == means


def test_explain_prints_the_key_and_an_unknown_one_names_the_nearest(astune):
    status, out, _ = astune("config", "explain", "trainer.optim.lr")
    assert status == 0
    assert "Peak learning rate" in out
    status, _, err = astune("config", "explain", "trainer.optim.lrr")
    assert status == 2
    assert "did you mean `astune.trainer.optim.lr`?" in err


MISTAKES = {
    "a file that is not there": (["--conf", "agnt.yaml"], {}, "agent.yaml"),
    "no experiment": (["--dry-run"], {}, "--conf FILE.yaml"),
    "an unknown key": (["--set", "rollout.num_repat=2"], {}, "astune.rollout.num_repeat"),
    "an unknown backbone": (["--backbone", "locl"], {}, "astune.backbone"),
    "a wrong value": (["--set", "trainer.total_steps=none"], {}, "a whole number"),
    "YAML that is none": ([], {"agent.yaml": "astune:\n  seed: [1\n"}, "agent.yaml, line 3"),
    "a workflow that does not import": (
        ["--set", "rollout.workflow=agnt.py->Agent"],
        {},
        "did you mean agent.py->Agent?",
    ),
    "a workflow that is broken": ([], {"agent.py": "import nothing_like_that\n"}, "nothing_like_that"),
    "a class that is not there": (["--set", "rollout.workflow=agent.py->Agnt"], {}, "did you mean agent.py->Agent?"),
    "a class without its method": (["--set", "rollout.workflow=agent.py->WithoutTheMethod"], {}, "execute"),
    "no workflow": (["--set", "rollout.workflow=''"], {}, "rollout.workflow"),
    "a judge that does not import": (["--set", "task_judge.judge_protocol=no.such->Judge"], {}, "no.such"),
    "tasks that are not there": (["--set", "task_reader.jsonl.training.file_path=no.jsonl"], {}, "no.jsonl"),
    "a line that is not JSON": ([], {"tasks.jsonl": ROW.format(1) + "{oops\n"}, "2"),
    "an id twice": ([], {"tasks.jsonl": ROW.format(1) * 2}, "1"),
    "a model that is not there": (["--set", "model.path=models/qwen/7b"], {}, "'models/qwen/7b' is no folder"),
    "too few tasks": (["--set", "trainer.tasks_per_step=9"], {}, "trainer.tasks_per_step"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_prints_one_error_and_the_fix_without_traceback(mistake, folder, astune):
    arguments, files, says = MISTAKES[mistake]
    for name, text in files.items():
        (folder / name).write_text(text)
    conf = [] if "--conf" in arguments or mistake == "no experiment" else ["--conf", "agent.yaml", "--dry-run"]
    status, _, err = astune(*conf, *arguments)
    assert status in (1, 2), err
    assert err.startswith("error: ")
    assert says in err
    assert "Traceback" not in err
    assert not (folder / "launcher_record").exists()


@pytest.mark.parametrize("words", [("--dry-run",), ("--backbone", "debug")])
def test_what_is_wrong_with_model_reader_workflow_and_judge_is_reported_at_once(words, folder, astune):
    (folder / "agent.yaml").write_text(
        """
astune:
  model: {path: ./nowhere}
  task_reader: {type: reader.py->Reader}
  rollout: {workflow: agent.py->Agnt}
  task_judge: {judge_protocol: astune.task_judge.judge_base->MathAnswerJudge}
"""
    )
    status, _, err = astune("--conf", "agent.yaml", *words)
    assert status == 2
    assert [line.split(": ")[2] for line in err.splitlines() if line.startswith("error: ")] == [
        "model.path",
        "rollout.workflow",
        "task_judge.judge_protocol",
        "task_reader.type",
    ]
    assert "did you mean astune.task_judge.math_answer_as_judge->MathAnswerAsJudge?" in err
    assert not (folder / "launcher_record").exists()


def test_a_dry_run_prints_the_configuration_and_the_plan_and_starts_nothing(folder, astune):
    status, out, err = astune(
        "--conf", "agent.yaml", "--dry-run", "--set", "trainer.total_steps=3", "--backbone", "local"
    )
    assert status == 0, err
    assert "total_steps: 3" in out
    assert "3 steps of 8 tasks x 8 episodes = 64 episodes a step" in out
    assert "experiment_name: agent" in out
    assert out.startswith("plan\n")
    assert not (folder / "launcher_record").exists()
    status, _, err = astune("--conf", "agent.yaml", "--dry-run=all")
    assert (status, "--dry-run=full" in err) == (2, True)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with what a wheel installs."""
    site = tmp_path / "site"
    (site / "astune" / "shipped").mkdir(parents=True)
    for path in (ROOT / "astune").iterdir():
        (site / "astune" / path.name).symlink_to(path)
    (site / "astune" / "shipped" / "tutorial").symlink_to(ROOT / "tutorial")
    return site


@pytest.mark.slow
@pytest.mark.parametrize("users", [None, "tutorial/notes.py", "tutorial/__init__.py"])
def test_an_installed_astune_has_its_tutorials_also_beside_a_folder_of_that_name(users, installed, folder):
    if users is not None:
        (folder / users).parent.mkdir()
        (folder / users).write_text("")
    words = (sys.executable, "-P", "-m", "astune", "demo", "--dry-run")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "tutorial.example_calculator.calculator->ExampleCalculatorLearn" in done.stdout, done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_a_folder_called_tutorial_hides_no_tutorial_of_ours(folder):
    (folder / "tutorial").mkdir()
    (folder / "tutorial" / "__init__.py").write_text("")
    words = (sys.executable, "-m", "astune", "demo", "--dry-run")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert "tutorial.example_calculator.calculator->ExampleCalculatorLearn" in done.stdout, done.stderr


@pytest.mark.parametrize(("settings", "trained"), [((), "adapters of rank 16"), (("model.lora.rank=8",), "rank 8")])
def test_the_demo_trains_adapters_that_set_can_change(settings, trained, folder, astune):
    status, out, _ = astune("demo", "--dry-run", *(word for each in settings for word in ("--set", each)))
    assert status == 0
    assert trained in " ".join(out.split())


@pytest.mark.parametrize(("flag", "in_full"), [("--dry-run", False), ("--dry-run=full", True)])
def test_a_plan_on_a_cluster_begins_with_the_plan_and_ends_with_all_of_the_engine_where_asked(
    flag, in_full, folder, astune
):
    python = folder / "python-of-verl"
    python.write_text("#!/bin/sh\necho '# for machines with GPUs, as this one is'\necho 'actor_rollout_ref: {}'\n")
    python.chmod(0o755)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    words = ("--backbone", "verl", "--set", f"environments.verl={python}", "--set", f"model.path={folder}")
    status, out, err = astune("--conf", "agent.yaml", *words, flag)
    assert status == 0, err
    assert out.startswith("plan\n  backbone   verl")
    assert "engine     verl for machines with GPUs, as this one is; its whole configuration: --dry-run=full" in out
    assert ("actor_rollout_ref: {}" in out) == in_full


@pytest.mark.parametrize(
    ("backbone", "says"), [("local", "training   tasks: {}; 3 steps of 8"), ("debug", "the first 2 tasks: {}, one")]
)
def test_a_plan_with_tasks_from_a_companion_that_is_yet_to_start_says_when_they_are_known(
    backbone, says, folder, astune
):
    url = f"http://127.0.0.1:{free_port()}"
    reader = {"env_type": "world", "env_url": url, "validation_split": "dev"}
    words = ["--set", "task_reader.type=env_service", "--set", "trainer.total_steps=3"]
    words += [word for key, value in reader.items() for word in ("--set", f"task_reader.env_service.{key}={value}")]
    words = ["--conf", "agent.yaml", "--backbone", backbone, "--with", "world=python world.py", "--dry-run", *words]
    status, out, err = astune(*words)
    assert status == 0, err
    assert says.format(f"known when {url} answers") in out
    assert ("held out   tasks: known when" in out) == (backbone == "local")
    assert "companion  world: " in out
    status, _, err = astune(*words, "--set", "rollout.workflow=agent.py->Nobody")
    assert (status, "Nobody" in err) == (2, True)


@pytest.mark.parametrize("command", [["report"], ["export", "--to", "out"], ["chat"]])
def test_a_run_that_is_not_there_is_said_to_be_so(command, folder, astune):
    status, _, err = astune(command[0], "nowhere", *command[1:])
    assert status == 1
    assert "no run found" in err


@pytest.mark.parametrize(
    "words", [("report", ""), ("clean", ""), ("--resume=",), ("--conf", "agent.yaml", "--resume", "")]
)
def test_an_empty_name_of_a_run_is_not_the_newest_one(words, folder, astune):
    with RunDirectory.create(folder, "e"):
        status, _, err = astune(*words)
    assert status
    assert "empty" in err


def test_resuming_where_nothing_ran_is_said_to_be_so(folder, astune):
    status, _, err = astune("--conf", "agent.yaml", "--resume")
    assert status == 1
    assert "launcher_record/agent" in err


def test_resuming_what_was_killed_before_it_had_begun_is_said_to_be_so(folder, astune):
    run = RunDirectory.create(folder, "agent")
    run.close()
    status, _, err = astune("--resume", str(run.path))
    assert status == 1
    assert "ended before it had begun" in err
    assert "start the experiment again with --conf" in err


def test_flags_of_a_run_do_not_go_with_a_command(astune):
    status, _, err = astune("--conf", "a.yaml", "demo")
    assert status == 2
    assert "--conf does not go before" in err


@pytest.fixture
def failing(monkeypatch, astune):
    """What a command prints whose work is this function; its exit status has to be the one that is named."""

    def call(work: Callable[..., object], status: int) -> str:
        monkeypatch.setattr("astune.config.explain", work)
        ended, _, err = astune("config", "explain")
        assert ended == status
        return err

    return call


def raising(error: BaseException):
    def work(*_: object) -> int:
        raise error

    return work


def test_each_kind_of_failure_has_its_exit_status(failing):
    for error, status, says in [
        (ConfigError("wrong", hint="do this"), 2, "hint: do this"),
        (JudgeError("[bold]failed[/]"), 1, "JudgeError: [bold]failed[/]"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, install_extra("local,agentscope")),
        (KeyboardInterrupt(), 130, "interrupted"),
    ]:
        assert says in failing(raising(error), status)


def test_a_command_that_resumes_says_so_where_it_is_interrupted(folder, astune, monkeypatch):
    monkeypatch.setattr("astune.config.load_config", raising(KeyboardInterrupt()))
    status, _, err = astune("data", "from-docs", "tasks.jsonl", "--out", "made.jsonl")
    assert (status, err) == (130, "error: interrupted\nhint: the same command resumes\n")


def test_a_defect_of_ours_prints_everything():
    code = """
import astune.config
from astune.cli.app import run
astune.config.explain = lambda _: {}['x']
run(["config", "explain"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "KeyError: 'x'" in done.stderr


def test_an_error_from_users_code_names_the_users_line(folder, failing):
    (folder / "mine.py").write_text("def judge():\n    return 1 / 0\n")
    sys.path.insert(0, str(folder))
    from mine import judge

    def work(_: str) -> int:
        try:
            return judge()
        except ZeroDivisionError as cause:
            raise JudgeError("judge on task 1: division by zero") from cause

    assert f"{folder}/mine.py, line 2" in failing(work, 1)


@pytest.mark.parametrize("command", [[], ["view"], ["check"], ["check", "numerics"]])
def test_flags_are_shown_without_a_type(command, astune):
    out = astune(*command, "--help")
    assert "--help" in str(out)
    assert "<bool>" not in str(out)
    assert "BOOL" not in str(out).upper().replace("BOOLEAN", "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["engine.base_url=null"], "names no endpoint"),
        (["engine.base_url=nowhere"], "is no address"),
        (["engine.base_url=http://127.0.0.1:9", "engine.api_key_env=NO_SUCH_KEY"], "NO_SUCH_KEY, which is not set"),
    ],
)
def test_an_engine_that_cannot_be_asked_leaves_no_run_behind(settings, told, folder, astune):
    words = [word for setting in ["engine.type=openai", *settings] for word in ("--set", setting)]
    assert told in str(astune("--conf", "agent.yaml", "--backbone", "debug", *words))
    assert not (folder / "launcher_record").exists()


@pytest.mark.parametrize("engine", ["verl", "trinity"])
def test_an_engine_whose_environment_is_not_there_says_how_to_make_it(engine, folder, astune):
    nowhere = f"environments.{engine}=/nowhere/bin/python"
    out = str(astune("--conf", "agent.yaml", "--backbone", engine, "--set", nowhere))
    assert f"{engine}'s environment does not exist" in out
    assert f"make env-{engine}" in out
    assert not (folder / "launcher_record").exists()


READER = """
import datetime
from astune import Task, TaskReaderBase

class Dated(TaskReaderBase):
    def training_tasks(self):
        return [Task("t", "q", metadata={"day": datetime.date(2026, 1, 31)})]

    def validation_tasks(self):
        return []

class Broken(Dated):
    def training_tasks(self):
        raise KeyError("no")
"""


@pytest.mark.parametrize(
    ("reader", "said"),
    [("Dated", "task t cannot be written as JSON"), ("Broken", "Broken.training_tasks (")],
)
def test_tasks_that_could_not_be_written_or_read_are_refused_before_they_are_measured(reader, said, folder, astune):
    (folder / "readers.py").write_text(READER)
    (folder / "own.yaml").write_text("astune: {rollout: {workflow: agent.py->Agent}}")
    status, _, err = astune("data", "measure", "--conf", "own.yaml", "--set", f"task_reader.type=readers.py->{reader}")
    assert (status, err.partition(":")[0]) == (1, "error")
    assert said in err
