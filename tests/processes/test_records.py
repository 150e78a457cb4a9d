"""A recorded process is its id and its start; --kill ends nothing else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import psutil
import pytest
from launcher_helpers import python, with_marker
from waiting import eventually

from astune.cli.app import run
from astune.processes.guarded import GuardedProcess
from astune.processes.kill import end, find_targets
from astune.processes.records import command_line, forget, record, recorded, started_at

SLEEPER = "import time; time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); {SLEEPER}"


@pytest.fixture
def sleeper(marker: str):
    """A process that nobody recorded."""
    process = subprocess.Popen(python(SLEEPER, marker))
    eventually(lambda: marker in command_line(process.pid), "its command line, a moment after the start")
    yield process
    process.kill()
    process.wait()


def test_a_record_is_there_until_it_is_forgotten(registry, sleeper, marker):
    found = record(sleeper.pid, name="sleeper", run="demo")
    assert found is not None
    assert marker in found.command
    assert recorded() == [found]
    forget(found)
    forget(found)
    assert recorded() == []
    assert list(registry.iterdir()) == []


def test_the_record_of_a_process_that_is_gone_is_removed(registry, sleeper):
    assert record(sleeper.pid, name="sleeper") is not None
    sleeper.kill()
    sleeper.wait()
    assert recorded() == []
    assert list(registry.iterdir()) == []


def test_another_process_with_the_same_id_is_not_ours(registry, sleeper):
    """The id of a recorded process that ended may be given to anybody."""
    record(sleeper.pid, name="sleeper")
    (path,) = registry.iterdir()
    earlier = json.loads(path.read_text())
    path.write_text(json.dumps(earlier | {"start": earlier["start"] + "0"}))
    assert find_targets(["python"]) == []
    assert sleeper.poll() is None
    assert list(registry.iterdir()) == []


def test_records_of_another_machine_are_left_alone(registry, sleeper):
    record(sleeper.pid, name="sleeper")
    (path,) = registry.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "elsewhere"}))
    assert recorded() == []
    assert path.exists()


def test_a_broken_record_is_removed(registry):
    registry.mkdir(parents=True)
    (registry / "1-x.json").write_text("{")
    assert recorded() == []
    assert list(registry.iterdir()) == []


def test_a_folder_that_cannot_be_written_stops_nothing(registry, sleeper):
    registry.parent.mkdir(parents=True)
    registry.write_text("a file where the folder should be")
    assert record(sleeper.pid, name="sleeper") is None


def test_the_start_of_a_process_is_read(sleeper):
    assert started_at(sleeper.pid) == started_at(sleeper.pid) != started_at(os.getpid())
    assert started_at(2**22 + 1) is None


def test_a_process_is_still_the_same_after_the_clock_was_set(registry, sleeper, monkeypatch):
    found = record(sleeper.pid, name="sleeper")
    boot, created = psutil.boot_time(), psutil.Process(sleeper.pid).create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: created + 3600)
    assert recorded() == [found]


@pytest.mark.slow
def test_a_recorded_process_is_ended_with_its_children_and_nothing_else(sleeper, marker):
    ours = subprocess.Popen(python(PARENT, "ours-" + marker))
    eventually(lambda: psutil.Process(ours.pid).children(), "its child")
    record(ours.pid, name="ours")
    targets = find_targets(["no such word", "PYTHON"])
    assert targets[0].process.pid == ours.pid
    assert len(targets) == 2
    assert find_targets(["no such word"]) == []
    assert end(targets, grace_s=10.0) == []
    ours.wait(5)
    assert all(not target.process.is_running() for target in targets)
    assert sleeper.poll() is None
    assert recorded() == []


def test_what_does_not_listen_is_killed(marker):
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPER}"
    process = subprocess.Popen(python(deaf, marker), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "deaf\n"
    record(process.pid, name="deaf")
    assert end(find_targets([marker]), grace_s=0.3) == []
    assert with_marker(marker) == []


def test_neither_this_process_nor_its_ancestors_are_ended(marker):
    record(os.getpid(), name="run")
    record(os.getppid(), name="shell")
    assert {os.getpid(), os.getppid()}.isdisjoint(target.process.pid for target in find_targets(["", "python"]))


def test_a_guarded_process_is_recorded_with_its_guardian_until_it_is_closed(tmp_path, marker):
    with GuardedProcess("sleeper", python(SLEEPER, marker), tmp_path / "log", run="demo") as process:
        assert [each.name for each in recorded()] == ["guardian of sleeper", "sleeper"]
        assert {each.run for each in recorded()} == {"demo"}
        assert recorded()[1].command == shlex.join(python(SLEEPER, marker))
        assert end(find_targets([marker]), grace_s=10.0) == []
        eventually(lambda: process.has_died, "its end is noticed")
    assert with_marker(marker) == []
    assert recorded() == []


def kill(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_flag_lists_then_ends_and_says_what_it_ended(sleeper, marker, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(sleeper.pid, name="env", run="launcher_record/demo")
    status, out, _ = kill(capsys, "--kill", marker, "--dry-run")
    assert status == 0
    assert "to be ended" in out
    assert "ended 1" not in out
    assert sleeper.poll() is None
    status, out, _ = kill(capsys, rf"--kill=ray\|{marker}")
    assert status == 0, out
    assert f"ended 1 processes: {sleeper.pid}" in out
    assert with_marker(marker) == []
    status, out, _ = kill(capsys, "--kill", marker)
    assert status == 0
    assert "no process that astune started matches" in out


@pytest.mark.parametrize("pattern", ["", " | "])
def test_a_flag_without_a_word_is_an_error(pattern, capsys):
    status, _, err = kill(capsys, "--kill", pattern)
    assert status == 2
    assert '--kill="python|ray|vllm"' in err


def test_registry_folder_follows_the_users_state_folder(monkeypatch):
    from astune.processes.records import registry_folder

    monkeypatch.delenv("XDG_STATE_HOME")
    assert registry_folder() == Path("~/.local/state/astune/processes").expanduser()
