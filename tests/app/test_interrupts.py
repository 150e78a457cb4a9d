"""Ctrl-C: one ends cleanly, two end at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from examples import some

from astune import Workflow
from astune.algorithm import load_algorithm
from astune.app.beside import Ready
from astune.app.interrupts import Interrupts
from astune.backbone.parts import UserParts
from astune.config import AstuneConfig
from astune.launcher.companions import Companions
from astune.schema import WorkflowError

ROOT = Path(__file__).parents[2]
SCRIPT = """
import asyncio, sys, time
from astune import Workflow
from astune.algorithm import load_algorithm
from astune.app.beside import Ready
from astune.app.interrupts import Interrupts
from astune.backbone.parts import UserParts
from astune.config import AstuneConfig
from astune.launcher.companions import Companions
from astune.schema import WorkflowError

async def work():
    try:
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        await asyncio.sleep(60)
    finally:
        sys.stdout.write("cleaning\\n"); sys.stdout.flush()
        {cleaning}
        sys.stdout.write("clean\\n"); sys.stdout.flush()

with Interrupts() as interrupts:
    try:
        interrupts.run(work())
    except KeyboardInterrupt:
        {afterwards}
        sys.exit(7)
"""


@pytest.fixture
def start():
    started: list[subprocess.Popen[str]] = []

    def start_script(cleaning: str, afterwards: str = "pass") -> subprocess.Popen[str]:
        script = SCRIPT.format(cleaning=cleaning, afterwards=afterwards)
        process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_script
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], 1))
def test_the_first_signal_lets_the_work_clean_up(start, number):
    process = start("await asyncio.sleep(0.01)")
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert out == "cleaning\nclean\n"
    assert "Ctrl-C again ends at once" in err
    assert process.returncode == 7


def test_the_second_signal_ends_at_once(start):
    process = start("time.sleep(60)")
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "cleaning\n"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130


@pytest.mark.slow
def test_the_second_signal_ends_at_once_when_the_work_is_over_too(start):
    process = start("pass", "print('over', flush=True); time.sleep(60)")
    os.kill(process.pid, signal.SIGINT)
    assert [process.stdout.readline() for _ in range(3)] == ["cleaning\n", "clean\n", "over\n"]
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_outside_of_the_work_the_first_signal_is_a_keyboard_interrupt_and_afterwards_the_process_is_as_it_was(number):
    former = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is former


def test_a_workflow_that_stops_the_loop_is_named(tmp_path):
    class Stops(Workflow):
        pass

    async def work():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    parts = UserParts([], [], Stops, None, load_algorithm(AstuneConfig()))
    with Interrupts() as interrupts, pytest.raises(WorkflowError, match="Stops stopped the event loop"):
        Ready(parts, Companions([], tmp_path), interrupts).run(work())


AGENT = """import threading, time

thinks = threading.Event()

def think():
    thinks.set()
    time.sleep(60)
"""
WHEN_IT_THINKS = """
import agent, astune.app.interrupts as it
it.SAYS_WHAT_HOLDS_AFTER_S, what_runs = 0.3, it._what_runs
it._what_runs = lambda: (agent.thinks.wait(60), what_runs())[1]
"""


@pytest.mark.slow
def test_what_it_waits_for_is_named_after_a_while(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    script = WHEN_IT_THINKS + SCRIPT.format(cleaning="agent.think()", afterwards="pass")
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        said = [process.stderr.readline() for _ in range(3)]
        assert said[-1] == f"still waiting for {tmp_path}/agent.py:7, in think; Ctrl-C again ends at once\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()
