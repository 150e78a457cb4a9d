"""`make e2e-letter`: the documents' other commands, typed as they stand in a fresh clone; each row is explained."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debug_session import DebugSession
from fresh_clone import FreshClone, answers
from letter_stage import MATH, ROOT, Table, documented_commands
from ports import free_port
from test_end_message import Gateway
from viewer_stage import make_episode, write_run
from waiting import eventually

from benchmarks.chromium import CHROMIUM, FLAGS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

AGENT = """
from vsdb import bp

from astune import Workflow, WorkflowOutput


class Talker(Workflow):
    async def execute(self, task, proxy):
        reply = await proxy.achat(proxy.init_messages)
        bp("TAG1")
        return WorkflowOutput(reward=float(len(reply["content"])))
"""
BP_LINE = 10
EXPERIMENT = """
astune:
  model: {path: MODEL_PATH}
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
  rollout: {workflow: my_agent.py->Talker, max_response_length_in_one_turn: 8}
  debug: {debug_first_n_tasks: 1}
"""


@pytest.fixture
def agent(clone: FreshClone, tiny_model: Path) -> Path:
    """A user's own agent in the clone, with a breakpoint that has a tag."""
    (clone.folder / "my_agent.py").write_text(AGENT)
    (clone.folder / "my_agent.yaml").write_text(EXPERIMENT.replace("MODEL_PATH", str(tiny_model)))
    tasks = [json.dumps({"main_query": f"Say {number}."}) for number in range(16)]
    (clone.folder / "tasks.jsonl").write_text("\n".join(tasks))
    return clone.folder / "my_agent.py"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("engine", ["trinity", "verl"])
def test_a_cluster_without_its_environment_is_one_error(engine: str, clone: FreshClone, gsm8k_hub, table: Table):
    line = MATH.replace("'debug' --with-logview", f"'{engine}' --with-ray")
    done = clone.run(line, HF_ENDPOINT=gsm8k_hub.address)
    assert done.status != 0
    assert len([text for text in done.out.splitlines() if text.startswith("error")]) == 1, done.out
    assert f"make env-{engine}" in done.out
    seen = (
        f"without {engine}'s environment one error, which names `make env-{engine}`; with it, see `make e2e-{engine}`"
    )
    table.add(line, seen, done.seconds)


def test_werewolves_is_planned_for_verl(clone: FreshClone, table: Table):
    line = "python launcher.py --conf tutorial/example_werewolves/werewolves.yaml --backbone='verl'"
    done = clone.run(line)
    assert done.status != 0
    assert len([text for text in done.out.splitlines() if text.startswith("error")]) == 1, done.out
    assert "make env-verl" in done.out
    table.add(line, "without verl's environment one error, which names `make env-verl`", done.seconds)


def test_appworlds_service_alone_stays_until_ctrl_c(clone: FreshClone, with_appworld, table: Table):
    with_appworld(clone)
    url = "http://127.0.0.1:8080/healthz"
    with clone.started("exec python launcher.py --with-appworld") as process:
        eventually(lambda: answers(url) or process.poll() is not None, "the service", 300)
        assert answers(url), process.communicate()[0]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert not answers(url)
    table.add("python launcher.py --with-appworld", "the service answered until Ctrl-C, which ended it", 0)


def test_one_line_ends_old_processes_and_starts_anew(clone: FreshClone, agent: Path, tmp_path: Path, table: Table):
    documented = 'python launcher.py --kill="python|ray|vllm|VLLM" && ray stop && clear && python launcher.py '
    line = f"{documented}--conf my_agent.yaml --backbone=debug"
    if not (clone.programs / "ray").exists():  # as `make install` puts it there
        shutil.copy(clone.folder / "scripts" / "ray_stand_in.sh", tmp_path / "ray")
        line = f"export PATH=$PATH:{tmp_path} && {line}"
    done = clone.run(line, XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.status == 0, done.out
    assert "Ray is not installed" in done.out
    seen = "works as one line; `ray stop` says that Ray is not installed there, and the line continues"
    table.add(f"{documented}…", seen, done.seconds)


def test_a_tag_stops_there_and_one_sigterm_ends_the_run(clone: FreshClone, agent: Path, table: Table):
    line = "exec python launcher.py --db='TAG1|TAG2|TAG3' --conf=my_agent.yaml --backbone=debug"
    with clone.started(line) as process:
        assert process.stdout is not None
        said = next((text for text in process.stdout if "waits for a debugger" in text), "")
        assert "breakpoint TAG1" in said
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    table.add(
        line.removeprefix("exec "), '`from vsdb import bp; bp("TAG1")` waited there; one SIGTERM ended the run', 0
    )


def test_vs_codes_debugger_stops_in_the_workflow(clone: FreshClone, agent: Path, table: Table):
    """What F5 does: debugpy with the arguments of `.vscode/launch.json`, and a breakpoint set by the editor."""
    launch = json.loads("\n".join(
        text for text in (clone.folder / ".vscode" / "launch.json").read_text().splitlines() if "//" not in text[:4]
    ))  # fmt: skip
    rollout = launch["configurations"][0]
    assert rollout["program"].endswith("launcher.py")
    arguments = " ".join(rollout["args"]).replace("${input:conf}", "my_agent.yaml")
    port = free_port()
    line = f"python -m debugpy --listen 127.0.0.1:{port} --wait-for-client launcher.py {arguments}"
    with clone.started(line), DebugSession(port, breakpoints={agent: [BP_LINE]}, deadline_s=600) as debugger:
        _path, stopped_at, function = debugger.stopped()
        assert (stopped_at, function) == (BP_LINE, "execute")
        debugger.to_the_end()
    table.add(f"VS Code: launcher.py {arguments}", "stopped at a breakpoint of the editor in the workflow", 0)


@pytest.mark.parametrize("what", ["the model is not found", "a companion dies at the start"])
def test_a_message_is_sent_when_the_start_fails(
    what: str, clone: FreshClone, agent: Path, gateway: Gateway, table: Table
):
    fault = {
        "the model is not found": "--set model.path=no/such/folder",
        "a companion dies at the start": "--with tools='exit 3'",
    }[what]
    line = f'PHONE_NUMBERS="18812341234" python launcher.py --conf my_agent.yaml {fault}'
    done = clone.run(line, ASTUNE_SMS_URL=f"{gateway.url}/sms")
    assert done.status != 0
    [(_path, _kind, body)] = gateway.received
    assert (body["phone_numbers"], body["status"]) == (["18812341234"], "failure")
    table.add(line, f"{what}: one message, status failure, to the gateway that `ASTUNE_SMS_URL` names", done.seconds)


def test_root_keys_of_the_engines_are_the_same_as_below_astune(clone: FreshClone, table: Table):
    (clone.folder / "below").mkdir()
    (clone.folder / "below" / "same.yaml").write_text(
        "astune:\n  verl: {trainer: {nnodes: 3}}\n  trinity: {mode: both}\n"
    )
    (clone.folder / "same.yaml").write_text("astune: {}\nverl: {trainer: {nnodes: 3}}\ntrinity: {mode: both}\n")
    probe = "from astune.config import load_config as load; print(load('same.yaml') == load('below/same.yaml'))"
    done = clone.run(f'python -c "{probe}"')
    assert done.out.strip() == "True", done.out
    table.add("`trinity:` and `verl:` as root keys", "the same configuration as `astune.trinity` and `astune.verl`", 0)


def test_the_viewer_finds_a_typed_path_and_names_one_outside(clone: FreshClone, table: Table):
    sync_api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.is_file():
        pytest.skip(f"there is no Chromium at {CHROMIUM}; scripts/install_debian.sh installs it")
    record = clone.folder / "launcher_record"
    run, _another = (write_run(record, [make_episode(number)]) for number in range(2))  # a single one opens at once
    typed = [record, run.parent, run / "rollout"]
    with clone.started("exec beast_logger_go --no-open") as process, sync_api.sync_playwright() as playwright:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://127.0.0.1:8181" in said, said
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page: Any = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto("http://127.0.0.1:8181")
        for path in typed:
            page.get_by_role("searchbox").fill(str(path))
            page.get_by_role("row").filter(has_text=run.name).first.wait_for()
        page.get_by_role("searchbox").fill("/somewhere/else/launcher_record")
        page.get_by_text("astune view").first.wait_for()
        browser.close()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    seen = "a typed record, experiment or `rollout` lists its runs; of a path outside the page says what opens it"
    table.add("beast_logger_go", seen, 0)


MARKS = {
    "example_math_agent/math_agent.yaml": "example_math_agent/math_agent.yaml --backbone='debug'",
    "example_appworld/appworld.yaml": "example_appworld/appworld.yaml --backbone='debug'",
    "--backbone='trinity' --with-ray": "'verl' --with-ray",
    "werewolves": "werewolves.yaml",
    "`python launcher.py --with-appworld`": "python launcher.py --with-appworld",
    "--kill=": "--kill=",
    "--db=": "--db=",
    "PHONE_NUMBERS": "PHONE_NUMBERS",
    "download_dataset.py": "download_dataset.py",
    "dataset_path": "--conf math_agent.yaml",
    "beast_logger_go": "beast_logger_go",
    "VS Code": "VS Code",
    "a root key": "as root keys",
}
"""What a row of commands.md is known by, and what the row of the table that answers it."""


def test_no_row_is_left_unexplained(compat: Path, table: Table):
    """The last test of `make e2e-letter`: it looks at what the others have written."""
    for command, duty in documented_commands(compat):
        answered = [mark for known, mark in MARKS.items() if known in command]
        assert answered, f"nothing runs {command}, which has to {duty}"
        rows = [row for row in table.rows if answered[-1] in row[1]]
        assert rows, f"no test has run {command}"
        assert all(verdict for _, _, verdict, _, _ in rows)
    assert (ROOT / "docs" / "en" / "letter.md").is_file()
