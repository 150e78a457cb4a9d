"""A guarded process never outlives the one that started it, nor does anything that it started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from launcher_helpers import commands_with, python, with_marker
from waiting import eventually

from astune.processes.guarded import GuardedProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

FAMILY = """
import subprocess, sys, time
if len(sys.argv) > 2:
    kind = sys.argv.pop()
    code = "import time\\ntime.sleep(600)"
    if kind == "stubborn":
        code = "import signal\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\n" + code
    subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], start_new_session=kind == "escaped")
print("family is there", flush=True)
time.sleep(600)
"""
DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
print("in the background", flush=True)
time.sleep(600)
"""
LAUNCHER = """
import sys, time
from pathlib import Path
from astune.processes.guarded import GuardedProcess
process = GuardedProcess("family", sys.argv[2:], Path(sys.argv[1]), grace_s=0.5)
print(process.pid, flush=True)
time.sleep(600)
"""
KINDS = ["child", "escaped", "stubborn"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "out.log"


def launch(log: Path, *command: str, grace_s: float = 0.5) -> GuardedProcess:
    return GuardedProcess("family", command, log, grace_s=grace_s)


def wait_for_line(log: Path, line: str) -> None:
    eventually(lambda: log.exists() and line in log.read_text(), f"the line {line!r}")


@pytest.mark.parametrize("kind", KINDS)
def test_closing_it_ends_the_whole_family(kind, log, marker):
    process = launch(log, *python(FAMILY, marker, kind))
    wait_for_line(log, "family is there")
    eventually(lambda: len(with_marker(marker)) == 3, "guardian, command and child run")
    process.close()
    assert with_marker(marker) == []
    assert not process.has_died


def test_it_is_asked_to_end_before_it_is_killed(log, marker):
    code = (
        "import signal, sys, time\n"
        "def leave(*_): print('asked to end', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    with launch(log, *python(code, marker), grace_s=20.0):
        wait_for_line(log, "ready")
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert "asked to end" in log.read_text()
    assert with_marker(marker) == []


def test_a_command_may_end_its_own_workers_in_order(log, marker):
    worker = "import signal, time; signal.signal(15, lambda *_: print('worker was asked', flush=True)); time.sleep(600)"
    code = (
        "import signal, subprocess, sys, time\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {worker!r}, sys.argv[1]])\n"
        "def leave(*_): worker.kill(); worker.wait(); print('in order', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    with launch(log, *python(code, marker), grace_s=20.0):
        wait_for_line(log, "ready")
    assert log.read_text() == "ready\nin order\n"
    assert with_marker(marker) == []


@pytest.mark.parametrize("kind", KINDS)
def test_killing_the_launcher_leaves_no_orphan(kind, log, marker):
    launcher = subprocess.Popen(
        python(LAUNCHER, str(log), *python(FAMILY, marker, kind)), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert int(launcher.stdout.readline())
    wait_for_line(log, "family is there")
    eventually(lambda: len(with_marker(marker)) == 4, "launcher, guardian, command and child run")
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    eventually(lambda: with_marker(marker) == [], "all of them end", timeout_s=15)


def test_a_launcher_whose_pipe_somebody_else_holds_is_still_seen_to_be_gone(log, marker):
    forked = LAUNCHER.replace("print(process.pid", "import os\nif os.fork() == 0: time.sleep(600)\nprint(process.pid")
    launcher = subprocess.Popen(
        python(forked, str(log), *python(FAMILY, "x" + marker)), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert int(launcher.stdout.readline())
    copies = [each for each in psutil.Process(launcher.pid).children() if "_guardian" not in " ".join(each.cmdline())]
    assert len(copies) == 1
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    try:
        eventually(lambda: [p.pid for p in with_marker(marker)] == [copies[0].pid], "all but the copy end")
    finally:
        copies[0].kill()


@pytest.mark.skipif(sys.platform != "linux", reason="forking this process is safe enough under Linux only")
def test_closing_ends_it_though_a_forked_process_holds_its_pipe(log, marker):
    process = launch(log, *python(FAMILY, marker, "escaped"))
    wait_for_line(log, "family is there")
    eventually(lambda: len(with_marker(marker)) == 3, "guardian, command and child run")
    holder = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    holder.start()
    try:
        began = time.monotonic()
        process.close()
        assert time.monotonic() - began < 60
        assert with_marker(marker) == []
    finally:
        holder.kill()
        holder.join()


def test_a_killed_guardian_is_noticed_and_what_it_guarded_is_ended(log, marker):
    process = launch(log, *python(FAMILY, marker))
    wait_for_line(log, "family is there")
    psutil.Process(process.pid).parent().kill()
    eventually(lambda: process.has_died, "its end is noticed")
    process.close()
    eventually(lambda: with_marker(marker) == [], "the command ends")


def test_its_death_is_told(log, marker):
    told = threading.Event()
    process = launch(log, *python(FAMILY, marker))
    process.on_death(told.set)
    wait_for_line(log, "family is there")
    os.kill(process.pid, signal.SIGKILL)
    assert told.wait(20)
    assert process.has_died
    assert process.status == -signal.SIGKILL
    process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted under Linux only")
def test_a_command_that_goes_into_the_background_goes_on_and_is_ended(log, marker):
    process = launch(log, *python(DAEMON, marker))
    wait_for_line(log, "in the background")
    eventually(lambda: process.status == 0, "the command itself ends")
    assert not process.has_died
    (daemon,) = commands_with(marker)
    daemon.kill()
    eventually(lambda: process.has_died, "the end of the process in the background is noticed")
    process.close()
    assert with_marker(marker) == []


def test_a_command_that_is_not_there_says_so_in_its_log(log):
    process = launch(log, "/no/such/program")
    eventually(lambda: process.has_died, "its failure")
    assert process.status == 127
    assert "/no/such/program could not be started" in log.read_text()
    process.close()


def test_what_the_guardian_does_with_signals_is_not_inherited(log, marker):
    code = "import signal; print({n: signal.getsignal(n) for n in (2, 15, 1)}, flush=True)"
    with launch(log, *python(code, marker)) as process:
        eventually(lambda: process.has_died, "its end")
    assert "SIG_IGN" not in log.read_text()
    assert "SIG_DFL" in log.read_text()
