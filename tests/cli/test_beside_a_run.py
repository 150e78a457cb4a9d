"""Companions and the end-of-run message in a run from the command line: Ctrl-C once, twice, `kill -9`, a death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from astune_command import ROOT, interrupted_at
from astune_command import start as start_astune

from astune.cli.app import run

pytestmark = pytest.mark.slow

sys.path.append(str(ROOT / "tests" / "launcher"))
from launcher_helpers import SERVER, python, with_marker  # noqa: E402
from waiting import eventually  # noqa: E402

WORK = """
import asyncio, sys
from pathlib import Path
from astune.app.console import Console
from astune.app.beside import known_as_run, started, telling_the_end
from astune.cli._errors import exit_with
from astune.app.interrupts import Interrupts
from astune.launcher.companion import Companion
from astune.runs import RunDirectory

async def train():
    print("trains", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("cleans up", flush=True)
        {cleaning}

def work():
    companion = Companion("tools", tuple(sys.argv[1:]))
    console = Console(width=300)
    experiment = Path("launcher_record/demo").resolve()
    with (
        telling_the_end("demo", console) as tell_of,
        known_as_run(experiment, console),
        Interrupts() as interrupts,
        started([companion], experiment, console) as beside,
    ):
        with RunDirectory.create(Path("launcher_record"), "demo") as run:
            tell_of(run)
            beside.belong_to(run.path)
            try:
                interrupts.run(beside.guard(train()))
            except KeyboardInterrupt:
                run.finish("interrupted")
                return 130
            except BaseException as error:
                run.finish("failed", str(error))
                raise
    return 0

import typer
try:
    exit_with(work)
except typer.Exit as left:
    sys.exit(left.exit_code)
"""
COMPANION = """
import signal, subprocess, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
print("Starting server on 1")
time.sleep(600)
"""


@pytest.fixture
def marker():
    found = f"marker-{uuid.uuid4().hex}"
    yield found
    for process in with_marker(found):
        process.kill()


@pytest.fixture
def start(tmp_path: Path, marker: str):
    """A run that waits beside a companion with a child: launcher, guardian, companion, child."""
    started: list[subprocess.Popen[str]] = []

    def start_run(cleaning: str = "pass", *stubborn: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            python(WORK.format(cleaning=cleaning), *python(COMPANION, marker, *stubborn)),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if "waiting for" in line:  # one that is ready at once is not waited for
            assert (
                "(astune.companions.tools.success_message or astune.companions.tools.health_url), at most 300 s" in line
            )
            line = process.stdout.readline()
        assert line.startswith("companion tools: process ")
        assert process.stdout.readline() == "trains\n"
        eventually(lambda: len(with_marker(marker)) == 4, "four processes run")
        return process

    yield start_run
    for process in started:
        process.kill()
        process.communicate()


def status_of(folder: Path) -> dict:
    (path,) = folder.glob("launcher_record/demo/*/run.json")
    return json.loads(path.read_text())


def recorded(folder: Path) -> list[Path]:
    return list((folder / "state" / "astune" / "processes").iterdir())


def test_ctrl_c_once_ends_cleanly_and_leaves_no_process(start, marker, tmp_path):
    process = start()
    assert len(recorded(tmp_path)) == 3
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == "cleans up\n"
    assert with_marker(marker) == []
    assert status_of(tmp_path)["status"] == "interrupted"
    assert recorded(tmp_path) == []


def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(start, marker, tmp_path):
    process = start("__import__('time').sleep(600)")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleans up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    eventually(lambda: with_marker(marker) == [], "every process ends")


def test_ctrl_c_again_while_companions_end_ends_at_once_and_leaves_no_process(start, marker, tmp_path):
    process = start("pass", "stubborn")
    process.send_signal(signal.SIGINT)
    eventually(lambda: status_of(tmp_path)["status"] == "interrupted", "its end is recorded")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=9) == 130  # within what companions are given to end
    eventually(lambda: with_marker(marker) == [], "every process ends", timeout_s=30)


def test_kill_9_leaves_no_process(start, marker):
    process = start()
    process.kill()
    process.wait()
    eventually(lambda: with_marker(marker) == [], "every process ends")


def test_a_companions_death_ends_the_run_with_its_name_and_last_lines(start, marker, tmp_path):
    process = start()
    (companion,) = [p for p in with_marker(marker) if p.parent() and "_guardian" in " ".join(p.parent().cmdline())]
    companion.kill()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == "cleans up\n"
    assert err.startswith("error: CompanionError: companion tools was ended by SIGKILL; its last lines")
    assert "  Starting server on 1" in err
    assert "Traceback" not in err
    assert with_marker(marker) == []
    assert status_of(tmp_path)["status"] == "failed"
    assert "companion tools was ended by SIGKILL" in status_of(tmp_path)["message"]


def test_kill_ends_a_run_that_hangs_with_all_that_it_started(start, marker, tmp_path, monkeypatch, capsys):
    process = start()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(SystemExit) as ended:
        run(["--kill", f"nothing|{marker}"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert re.search(r"ended [4-5] processes", out), out  # the child of a companion may end with it
    process.wait(timeout=30)
    assert with_marker(marker) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--with", "env"], "there is no companion called env"),
        (["--with", "=x"], "does not have the form NAME=COMMAND"),
        (["--with-appworld"], "APPWORLD_PATH is not set"),
    ],
)
def test_a_mistake_in_a_flag_is_one_error_before_anything_starts(arguments, says, astune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPWORLD_PATH", raising=False)
    (tmp_path / "c.yaml").write_text("astune: {}\n")
    status, _, err = astune("--conf", "c.yaml", *arguments)
    assert status == 2
    assert says in err
    assert "hint: " in err
    assert not (tmp_path / "launcher_record").exists()


def test_a_companion_that_fails_to_start_leaves_no_run(astune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("astune: {}\n")
    status, _, err = astune("--conf", "c.yaml", "--with", "env=no_such_command_at_all")
    assert status == 1
    assert err.startswith("error: CompanionError: companion env ended with exit status 127")
    assert list(tmp_path.glob("launcher_record/*/*/run.json")) == []


def test_a_companion_alone_is_kept_until_ctrl_c(tmp_path, marker):
    (tmp_path / "server.py").write_text(SERVER)
    service = f"tools={sys.executable} server.py 0 {marker} & echo Starting server on 0; wait"
    process = start_astune(tmp_path, "--with", service, XDG_STATE_HOME=str(tmp_path / "state"))
    assert process.stdout is not None
    assert next(line for line in process.stdout if line.startswith("until Ctrl-C: tools; output in "))
    assert with_marker(marker) != []
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert with_marker(marker) == []


def test_a_companion_alone_that_dies_ends_the_command(tmp_path):
    process = start_astune(tmp_path, "--with", "tools=echo Starting server on 0; sleep 1; echo no more memory; exit 3")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1, out + err
    assert err.startswith("error: CompanionError: companion tools ended with exit status 3; its last lines")
    assert "no more memory" in err


@pytest.mark.parametrize("flag", ["--with=a=b", "--with-ray", "--with-appworld", "--with-logview", "--kill=x"])
def test_flags_of_a_run_do_not_go_with_a_command(flag, astune):
    status, _, err = astune(flag, "demo")
    assert status == 2
    assert "does not go before the command demo" in err


def test_both_doors_show_the_same_help():
    shown = [
        subprocess.run([sys.executable, *door, *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in (["--help"], ["doctor", "--help"])
        for door in (["launcher.py"], ["-c", "from astune.cli import main; main()"])
    ]
    assert shown[0] == shown[1]
    assert shown[2] == shown[3]
    for flag in ("--with", "--with-ray", "--with-appworld", "--with-logview", "--kill", "doctor"):
        assert flag in shown[0]


@pytest.mark.slow
def test_a_real_run_with_a_companion_from_start_to_ctrl_c(tiny_folder, tmp_path, marker):
    """Everything together: a real training, a companion with an address, the message through a gateway."""
    settings = {
        "model.path": tiny_folder,
        "trainer.total_steps": 600,
        "trainer.tasks_per_step": 2,
        "rollout.num_repeat": 2,
        "trainer.test_freq": 60,
        "trainer.validation.max_tasks": 2,
        "rollout.max_response_length_in_one_turn": 8,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / ".env").write_text("PHONE_NUMBERS=123\n")
    process = start_astune(
        tmp_path,
        *("--conf", str(ROOT / "tutorial/example_calculator/calculator.yaml")),
        *("--with", f"tools={sys.executable} server.py 0 {marker} & echo Starting server on 0; wait"),
        *words,
    )
    lines, rest, _ = interrupted_at(process, "step 1/600")
    assert lines[0].startswith("PHONE_NUMBERS is set but ASTUNE_SMS_URL")
    assert any('"Starting server on" was written' in line for line in lines[1:3])  # perhaps after one that waits
    assert "continue with: astune --resume" in rest
    (log,) = tmp_path.glob("launcher_record/calculator/*/companions/tools.log")
    assert "Starting server on 0" in log.read_text()
    assert with_marker(marker) == []
