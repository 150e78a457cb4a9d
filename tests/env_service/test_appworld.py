"""AppWorld's real engine behind its service, on a small world: what an agent sees, is scored for, and cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from appworld_stage import (
    COMPLETE,
    COUNT_NOTES,
    LOGIN,
    SCRIPT,
    SECRET,
    WRITE_EGGS,
    WRITE_MILK,
    fenced,
    places,
    play,
    run,
    score,
    serving,
)
from service_stage import Service, is_running
from waiting import eventually

pytestmark = pytest.mark.slow

MODULES = "import appworld.environment as engine\nmodules = engine.sys.modules\nposix = modules['posix']\n"
"""How code gets around AppWorld's own guard, which forbids imports and functions by their names."""


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def service(appworld_python: Path, appworld_root: Path, temporary: Path) -> Iterator[Service]:
    with serving(appworld_python, appworld_root, temporary) as service:
        yield service


@pytest.fixture(scope="module")
def killed_temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def killed_service(appworld_python: Path, appworld_root: Path, killed_temporary: Path) -> Iterator[Service]:
    """One that allows a call ten seconds, for two tests, of which the second kills it."""
    with serving(appworld_python, appworld_root, killed_temporary, "--call-timeout-s", "10", "--warm", "1") as service:
        yield service


@pytest.fixture
def instance(service: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """An open instance of the task that asks for a note about milk."""
    assert service.create(request.node.name, "groceries_1").status_code == 200
    yield request.node.name
    service.post("release", instance_id=request.node.name)


def test_the_tasks_are_those_of_the_data_sets(service):
    profiles = {split: service.post("get_env_profile", params={"split": split}) for split in ("train", "dev", "tset")}
    assert profiles["train"].json()["data"] == ["travel_1", "groceries_1"]
    assert profiles["dev"].json()["data"] == ["music_1"]
    assert profiles["tset"].status_code == 400
    assert "no data set 'tset'; those in" in profiles["tset"].json()["detail"]
    assert "are dev, train" in profiles["tset"].json()["detail"]


def test_a_task_that_is_not_there_is_refused(service):
    for task_id in ("nothing_1", "../tasks/travel_1"):
        answer = service.create("n", task_id)
        assert answer.status_code == 400
        assert f"AppWorld has no task '{task_id}'" in answer.json()["detail"]


def test_the_agent_reads_who_asks_for_what(service):
    [manual, message] = service.create("asked", "travel_1").json()["data"]["state"]
    assert (manual["role"], "apis.supervisor.complete_task()" in manual["content"]) == ("system", True)
    assert message == {
        "role": "user",
        "content": "I am Joe Hill, my e-mail address is joe.hill@example.com and my phone number is 5550100.\n"
        "It is Monday, 8 May 2023, 09:00. My request:\n\nHow many notes about travel do I have in Simple Note?",
    }


def test_a_request_that_is_done_scores_1(service, instance):
    assert run(service, instance, WRITE_MILK) == "Output:\n```\nExecution successful.\n```"
    done = service.step(instance, fenced(COMPLETE)).json()["data"]
    assert (done["is_terminated"], done["state"]) == (True, [])
    assert (score(service, instance, sparse=True), score(service, instance, sparse=False)) == (1.0, 1.0)


def test_a_request_that_is_done_wrongly_scores_0_and_its_parts_count_in_the_dense_score(service, instance):
    run(service, instance, WRITE_EGGS)
    run(service, instance, COMPLETE)
    assert (score(service, instance, sparse=True), score(service, instance, sparse=False)) == (0.0, 0.75)
    told = service.post("get_info", instance_id=instance).json()["data"].splitlines()
    assert told == [
        "2 pieces of code were run",
        "passed: assert only notes changed.",
        "passed: assert no note was removed.",
        "passed: assert the new note is titled Groceries.",
        "failed: assert the new note says milk.",
    ]


def test_an_agent_that_does_nothing_scores_what_passes_by_itself(service, instance):
    assert (score(service, instance, sparse=True), score(service, instance, sparse=False)) == (0.0, 0.25)


def test_an_answer_to_a_question_is_compared(service):
    for answer, expected in ((2, 1.0), (3, 0.0)):
        play(service, f"answer-{answer}", f"apis.supervisor.complete_task(answer={answer})", task_id="travel_1")
        assert score(service, f"answer-{answer}", sparse=True) == expected


def test_two_instances_of_one_task_share_nothing(service):
    first = play(service, "first", "found = 5", WRITE_MILK, COUNT_NOTES)
    second = play(service, "second", COUNT_NOTES, "print(found)")
    assert (first[-1], second[0]) == ("Output:\n```\n5\n```", "Output:\n```\n4\n```")
    assert "NameError" in second[1]
    assert (score(service, "first", sparse=False), score(service, "second", sparse=False)) == (1.0, 0.25)


def test_an_instance_after_another_begins_anew(service):
    play(service, "before", "apis.simple_note = None", WRITE_MILK, COMPLETE)
    service.post("release", instance_id="before")
    assert play(service, "after", COUNT_NOTES) == ["Output:\n```\n4\n```"]


def test_a_repeated_step_is_applied_once(service, instance):
    first = service.step(instance, fenced(WRITE_MILK), step_index=0)
    again = service.step(instance, fenced(WRITE_MILK), step_index=0)
    assert first.content == again.content
    assert run(service, instance, COUNT_NOTES) == "Output:\n```\n5\n```"


def test_code_that_raises_is_answered_and_changes_no_score(service, instance):
    run(service, instance, WRITE_MILK)
    assert "ZeroDivisionError: division by zero" in run(service, instance, "1 / 0")
    assert "Syntax error" in run(service, instance, "print(")
    assert score(service, instance, sparse=True) == 1.0
    assert run(service, instance, "print(6 * 7)") == "Output:\n```\n42\n```"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("hello", "There is no code in your answer."),
        ("", "There is no code in your answer."),
        ("`print(1)`", "There is no code in your answer."),
        ("First\n```python\nprint(1)\n```\nthen\n```python\nprint(2)\n```", "1\n```\nOnly the first block"),
        ("```\nprint(3)\n```", "Output:\n```\n3\n```"),
        ("```py\nprint(4)", "Output:\n```\n4\n```"),
        ("```python\n```", "No code available"),
        ("```python\nprint(5)```\nDone.", "Output:\n```\n5\n```"),
        ("```python3\nprint(6)\n```\nDone.", "Output:\n```\n6\n```"),
        ("```Python title=a.py\r\nprint(7)\r\n```\r\nDone.", "Output:\n```\n7\n```"),
        ("I write: ```python\nprint(8)\n```\nDone.", "Output:\n```\n8\n```"),
        ('```json\n{"a": 1}\n```\nNow:\n```python\nprint(9)\n```', "Output:\n```\n9\n```"),
        ("```json\n{}\n```\nThat is all.", "There is no code in your answer."),
        ("Put it between ```python and ```.\nprint(10)", "There is no code in your answer."),
    ],
)
def test_what_is_code_in_an_answer(text, read, service, request):
    service.create(request.node.name, "groceries_1")
    data = service.step(request.node.name, text).json()["data"]
    assert read in data["state"][0]["content"]
    assert not data["is_terminated"]
    service.post("release", instance_id=request.node.name)


def test_long_output_is_cut(service, instance):
    read = run(service, instance, "print('x' * 25_000)")
    assert "15001 more characters were left out; print less at once" in read
    assert len(read) < 10_200


def test_the_worlds_clock_stands_still_and_the_servers_does_not(killed_service, killed_temporary):
    service = killed_service
    before = worlds_below(killed_temporary)
    [first, second] = play(service, "slow", "print(DateTime.now())", "print(DateTime.now())")
    assert first == second == "Output:\n```\n2023-05-08 09:00:00\n```"
    began = time.monotonic()
    answer = service.step("slow", fenced("while True: pass"))
    assert (answer.status_code, 10 <= time.monotonic() - began < 30) == (500, True)
    assert "took longer than 10 s" in answer.json()["detail"]
    assert worlds_below(killed_temporary) == before
    assert play(service, "next", "print(1)") == ["Output:\n```\n1\n```"]


def test_processes_end_with_the_server(killed_service):
    play(killed_service, "held", LOGIN)
    below = [process.pid for process in psutil.Process(killed_service.process.pid).children(recursive=True)]
    assert len(below) >= 3  # what the others are forked from, the instance's, and its world
    killed_service.process.kill()
    eventually(lambda: not any(is_running(pid) for pid in below), "all processes to end")


WALLS = {
    "the task's reference": "posix.open(REFERENCE, 0)",
    "another task": "posix.open(OTHER_TASK, 0)",
    "the environment of the server": "posix.open('/proc/self/environ', 0)",
    "the user's files": "posix.listdir(HOME)",
    "writing beside the data": "posix.open(DATA + '/written', 0o101)",
    "changing the links to the data": "posix.unlink(ROOT + '/data/base_dbs')",
    "the network": "modules['_socket'].socket()",
    "another process": "posix.fork()",
    "a signal to the server": "posix.kill(posix.getppid(), 9)",
}


@pytest.mark.parametrize("target", WALLS)
def test_code_that_gets_around_appworlds_guard_reaches_nothing(target, service, instance, appworld_root):
    score(service, instance, sparse=True)  # the evaluation shows the reference to itself alone
    root = "ROOT = modules['os'].environ['APPWORLD_ROOT']\n"
    read = run(service, instance, f"{MODULES}{places(appworld_root)}{root}print({WALLS[target]})")
    assert "PermissionError" in read, read


def test_the_reference_is_not_in_the_worlds_memory(service, instance):
    read = run(service, instance, "from appworld.task import Task\nprint(Task.load('groceries_1').ground_truth.answer)")
    assert "ground_truth) doesn't exist" in read or "Permission denied" in read


def test_the_servers_environment_is_not_the_codes(service, instance):
    read = run(service, instance, f"{MODULES}print(sorted(modules['os'].environ))")
    assert "APPWORLD_ROOT" in read
    assert "APPWORLD_PATH" not in read
    assert "PYTHONPATH" not in read


STARTED_WITH = """
ctypes = modules['ctypes']
address = ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'program_invocation_name').value
while found := ctypes.string_at(address):
    print(found.decode())
    address += len(found) + 1
"""
"""Command line and variables, which the system laid on the process's stack when its program was started."""


def test_the_servers_environment_is_not_in_the_worlds_memory(service, instance):
    read = run(service, instance, MODULES + STARTED_WITH)
    assert "astune.env_service._worker" in read
    assert "APPWORLD_PATH=" in read
    assert SECRET not in read


def test_a_file_of_variables_above_appworlds_package_is_not_read(appworld_python, appworld_root, tmp_path):
    """AppWorld looks for it from its own folder upward, and finds the user's where its Python is in a project."""
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    packages = tmp_path / ".venv" / "packages"
    packages.mkdir(parents=True)
    (packages / "appworld").symlink_to(asked(appworld_python, "import appworld; print(appworld.__path__[0])"))
    (packages / "astune").symlink_to(SCRIPT.parents[2] / "astune")
    preparing = "import astune.environments._appworld_engine as e; e.prepare(); print(sorted(e.os.environ))"
    variables = {"PYTHONPATH": str(packages), "APPWORLD_PATH": str(appworld_root), "TMPDIR": str(tmp_path)}
    found = asked(appworld_python, preparing, env=variables, cwd=tmp_path)
    assert "APPWORLD_ROOT" in found
    assert "OPENAI_API_KEY" not in found


def asked(python: Path, code: str, **settings: Any) -> str:
    return subprocess.check_output([python, "-c", code], text=True, **settings).strip()


def test_memory_is_bounded(service, instance):
    assert "MemoryError" in run(service, instance, "held = bytearray(3 << 30)")
    assert run(service, instance, "print(1)") == "Output:\n```\n1\n```"


FORGE = """
body = %s
for number in range(3, 64):
    try:
        if modules['stat'].S_ISSOCK(posix.fstat(number).st_mode):
            posix.write(number, len(body).to_bytes(8, 'big') + body)
    except OSError:
        pass
"""
"""An answer in the engine's name."""


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("posix._exit(3)", "the code's world ended with exit status 3"),
        ("modules['ctypes'].string_at(0)", "the code's world was ended by SIGSEGV"),
        (FORGE % "b'[' * 200_000", "the code's world stopped answering"),
        (FORGE % """b'{"data": 1}'""", "the code's world gave another answer than the engine's"),
        (
            "engine.AppWorld.task_completed = None",
            "the world of task groceries_1, run: TypeError: 'NoneType' object is not callable",
        ),
    ],
)
def test_code_that_ends_its_world_ends_the_episode_and_is_scored(code, how, service, request):
    play(service, request.node.name, WRITE_EGGS)
    data = service.step(request.node.name, fenced(MODULES + code)).json()["data"]
    assert data["is_terminated"]
    assert data["info"] == {"ended": how}
    assert score(service, request.node.name, sparse=False) == 0.75


def test_code_that_changes_the_engine_does_not_change_its_score(service, instance):
    run(service, instance, "import appworld.evaluator as e\ne.evaluate_task = lambda *given, **named: 1")
    run(service, instance, f"{MODULES}modules['appworld.evaluator'].TestTracker.success = True")
    assert (score(service, instance, sparse=True), score(service, instance, sparse=False)) == (0.0, 0.25)


def test_nothing_is_written_beside_the_users_data_and_nothing_is_left(appworld_python, appworld_root, tmp_path):
    before = _state_of(appworld_root)
    home = tmp_path / "home"
    home.mkdir()
    with serving(appworld_python, appworld_root, tmp_path) as service:
        play(service, "played", WRITE_MILK, COMPLETE)
        score(service, "played", sparse=True)
        worlds = worlds_below(tmp_path)
        assert len(worlds) == 1
        service.post("release", instance_id="played")
        assert not worlds[0].exists()
        play(service, "open", LOGIN)
    assert list(tmp_path.iterdir()) == [home]
    assert _state_of(appworld_root) == before


class TestStart:
    def test_a_folder_without_data_is_named_with_the_command_that_fetches_it(self, appworld_python, tmp_path):
        said = started(appworld_python, APPWORLD_PATH=str(tmp_path))
        assert f"error: there is no AppWorld data in {tmp_path}/data" in said
        assert f"`appworld download data --root {tmp_path}`" in said
        assert "docs/en/appworld.md" in said

    def test_data_of_another_version_is_named(self, appworld_python, tmp_path):
        (tmp_path / "data" / "tasks" / "a_1" / "dbs").mkdir(parents=True)
        (tmp_path / "data" / "tasks" / "a_1" / "specs.json").write_text("{}")
        said = started(appworld_python, APPWORLD_PATH=str(tmp_path))
        assert f"error: AppWorld does not start with the data in {tmp_path}/data: KeyError: 'db_version'" in said
        assert "docs/en/appworld.md" in said

    def test_without_the_variable(self, appworld_python):
        assert "error: APPWORLD_PATH is not set" in started(appworld_python, APPWORLD_PATH="")

    def test_a_python_without_appworld_is_named_with_what_makes_one(self, tmp_path):
        said = started(Path(sys.executable), APPWORLD_PATH=str(tmp_path))
        assert f"error: {sys.executable}: AppWorld is missing" in said
        assert "`make appworld`" in said


def started(python: Path, **variables: str) -> str:
    """What the server says that cannot start."""
    done = subprocess.run(
        [python, SCRIPT, "--port", "0"],
        env={**os.environ, "PYTHONPATH": "", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def worlds_below(temporary: Path) -> list[Path]:
    return list(temporary.glob("astune-appworld-*/**/appworld-*/experiments"))


def _state_of(folder: Path) -> dict[str, tuple[int, float]]:
    """Size and time of every file below."""
    files = (path for path in folder.rglob("*"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime) for path in files}
