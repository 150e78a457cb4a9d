"""Companions: when they count as started, what is said when they fail, and that they end with the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launcher_helpers import SERVER, commands_with, python, with_marker
from waiting import eventually

from astune.launcher.companion import Companion, in_shell
from astune.launcher.companions import Companions
from astune.schema import CompanionError, DeadlineExceeded, EngineError, TaskReaderError

pytestmark = pytest.mark.slow

TALKER = "import sys, time; print('Uvicorn running on', sys.argv[1]); time.sleep(600)"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return tmp_path / "launcher_record" / "demo"


class Told(list[str]):
    """What a start tells; also stands for the line that is written over and over."""

    def start(self, companions: Companions) -> Told:
        companions.start(self.append, lambda *_: None)
        return self


def server(port: int, marker: str, **settings: object) -> Companion:
    url = f"http://127.0.0.1:{port}/healthz"
    return Companion("env", tuple(python(SERVER, str(port), marker)), health_url=url, **settings)


def test_one_with_an_address_counts_as_started_when_it_answers(experiment, port, marker):
    with Companions([server(port, marker)], experiment) as companions:
        told = Told().start(companions)
        assert re.fullmatch(rf"companion env: process \d+, http://127.0.0.1:{port}/healthz answers after .* s", told[0])
        assert len(with_marker(marker)) == 2
    assert with_marker(marker) == []


def test_the_manuals_one_line_example_counts_as_started(experiment, port, marker):
    command = in_shell(f"exec {shlex.join([sys.executable, '-m', 'http.server', str(port)])} # {marker}")
    with Companions([Companion("tools", command, timeout_s=30)], experiment) as companions:
        assert '"Serving HTTP on" was written' in Told().start(companions)[0]


@pytest.mark.parametrize("own", ["", "the tools are ready"])
def test_one_without_an_address_counts_as_started_by_what_it_writes(own, experiment, marker):
    code = TALKER.replace("Uvicorn running on", own) if own else TALKER
    messages = (own, "Ray runtime started") if own else Companion("x", ()).success_messages
    companion = Companion("tools", tuple(python(code, marker)), success_messages=messages)
    with Companions([companion], experiment) as companions:
        assert f'"{own or "Uvicorn running on"}" was written' in Told().start(companions)[0]


def test_its_environment_is_inherited(experiment, marker, monkeypatch):
    monkeypatch.setenv("MY_SETTING", "Starting server on 17")
    line = f"echo $MY_SETTING $ASTUNE_NOT_SET {marker}; sleep 600"
    with Companions([Companion("env", in_shell(line))], experiment) as companions:
        assert "Starting server on" in Told().start(companions)[0]


def test_one_that_answers_already_is_used_and_not_ended(experiment, port, marker):
    with Companions([server(port, marker)], experiment) as first:
        Told().start(first)
        with Companions([server(port, marker)], experiment.parent / "other") as second:
            assert "already responds and is reused" in Told().start(second)[0]
            assert len(with_marker(marker)) == 2
        assert len(with_marker(marker)) == 2


def test_one_waits_for_the_one_before(experiment, port, marker):
    line = f"curl -s http://127.0.0.1:{port}/healthz >/dev/null && echo Starting server on || exit 3; sleep 600"
    line = line.replace("curl -s", shlex.join(python("import urllib.request as u, sys; u.urlopen(sys.argv[1])")))
    second = Companion("second", in_shell(line))
    with Companions([server(port, marker), second], experiment) as companions:
        assert len(Told().start(companions)) == 2


def test_one_that_is_the_runs_own_is_not_mistaken_for_another_that_answers_at_its_port(experiment, port, marker):
    with Companions([server(port, marker)], experiment) as first:
        Told().start(first)
        error = failing(server(port, marker, port_key="engine.vllm.port"), experiment.parent / "other")
    assert f"already responds at http://127.0.0.1:{port}, but a run starts its own" in error.message
    assert "set engine.vllm.port to another port" in error.hint


def failing(companion: Companion, experiment: Path) -> CompanionError:
    with pytest.raises(CompanionError) as caught, Companions([companion], experiment) as companions:
        Told().start(companions)
    return caught.value


def test_one_that_dies_while_it_starts_is_named_with_its_last_lines(experiment, marker):
    lines = "\n".join(f"line {number}" for number in range(40))
    error = failing(Companion("env", in_shell(f"echo '{lines}'; echo broken >&2; exit 3")), experiment)
    assert "companion env ended with exit status 3" in error.message
    assert error.message.endswith("  line 38\n  line 39\n  broken")
    assert "line 20\n" not in error.message
    log = re.search(r"its whole output is in (\S+)\)", error.message)
    assert log is not None
    assert "line 20\n" in Path(log[1]).read_text()


def test_a_full_port_is_named_with_who_holds_it(experiment, port, marker):
    holder = subprocess.Popen(python(SERVER, str(port), marker))
    try:
        eventually(lambda: psutil.Process(holder.pid).net_connections(), "the holder listens")
        companion = Companion(
            "env", tuple(python(SERVER, str(port), marker)), health_url=f"http://127.0.0.1:{port}/ready"
        )
        error = failing(companion, experiment)
    finally:
        holder.kill()
        holder.wait()
    assert "Address already in use" in error.message
    assert f"port {port} is taken by process {holder.pid} (" in error.hint


def test_a_command_that_is_not_there_is_said_to_be_so(experiment):
    error = failing(Companion("env", in_shell("no_such_command_at_all --port 1")), experiment)
    assert "companion env ended with exit status 127" in error.message
    assert "no_such_command_at_all" in error.message
    assert "its command was not found" in error.hint


@pytest.mark.slow
def test_one_that_never_answers_is_given_up_with_the_key_to_change(experiment, port, marker):
    silent = Companion("env", tuple(python("print('hm'); import time; time.sleep(600)", marker)), timeout_s=5.0)
    with pytest.raises(DeadlineExceeded) as caught, Companions([silent], experiment) as companions:
        Told().start(companions)
    assert "waiting for a success message in its output took longer than 5 s" in caught.value.message
    assert "hm" in caught.value.message
    assert "astune.companions.env.success_message" in caught.value.hint
    wrong = server(port, marker, timeout_s=5.0)
    wrong = Companion("env", wrong.command, health_url=f"http://127.0.0.1:{port}/health", timeout_s=5.0)
    with pytest.raises(DeadlineExceeded) as caught, Companions([wrong], experiment) as companions:
        Told().start(companions)
    assert "it answers with HTTP status 404" in caught.value.message
    assert "astune.companions.env.health_url" in caught.value.hint
    assert with_marker(marker) == []


async def test_its_death_ends_the_work_and_is_named(experiment, port, marker):
    cleaned: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(time.monotonic())
            await asyncio.sleep(0.01)  # what a run does then is waited for
            cleaned.append(time.monotonic())

    with Companions([server(port, marker)], experiment) as companions:
        Told().start(companions)
        guarded = asyncio.ensure_future(companions.guard(work()))
        await asyncio.sleep(0)
        (process,) = commands_with(marker)
        died_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        with pytest.raises(CompanionError, match="companion env was ended by SIGKILL; it wrote nothing"):
            await guarded
    assert len(cleaned) == 2
    assert cleaned[0] - died_at < 20


async def test_work_goes_on_without_one_that_it_does_not_need(experiment, port, marker, caplog):
    told = asyncio.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    async def work() -> None:
        await told.wait()

    log = logging.getLogger("astune.launcher.companions")
    log.addHandler(listener := Listener())
    with Companions([server(port, marker, needed=False)], experiment) as companions:
        Told().start(companions)
        guarded = asyncio.ensure_future(companions.guard(work()))
        await asyncio.sleep(0)
        for process in commands_with(marker):
            process.kill()
        await asyncio.wait_for(guarded, 20)
    log.removeHandler(listener)
    assert "the run continues without it: companion env was ended by SIGKILL" in caplog.text


def test_an_error_while_one_is_dead_names_the_dead(experiment, marker):
    def read_tasks_from_the_dead() -> None:
        with Companions([Companion("tools", tuple(python(TALKER, marker)))], experiment) as companions:
            Told().start(companions)
            for process in commands_with(marker):
                process.kill()
            eventually(lambda: companions._running[0][1].has_died, "its death is noticed")
            raise TaskReaderError("connection refused")

    with pytest.raises(CompanionError, match="companion tools was ended by SIGKILL") as caught:
        read_tasks_from_the_dead()
    assert isinstance(caught.value.__cause__, TaskReaderError)


@pytest.mark.parametrize("names_it", [True, False])
async def test_a_failure_at_the_address_of_one_that_lives_has_its_last_lines(names_it, experiment, port, marker):
    async def work() -> None:
        where = f"http://127.0.0.1:{port}" if names_it else "http://somewhere.else:80"
        raise EngineError(f"{where}/v1/completions answered 500", hint="look into its log")

    talking = f"print('I am out of memory', flush=True)\n{SERVER}"
    url = f"http://127.0.0.1:{port}/healthz"
    companion = Companion("env", tuple(python(talking, str(port), marker)), health_url=url)
    with Companions([companion], experiment) as companions:
        Told().start(companions)
        with pytest.raises(EngineError if not names_it else CompanionError, match="answered 500") as caught:
            await companions.guard(work())
    assert ("I am out of memory" in caught.value.message) is names_it
    assert caught.value.hint == "look into its log"


def test_logs_of_what_has_no_run_are_removed_when_nothing_went_wrong_and_stay_otherwise(experiment, marker):
    for fails in (False, True):
        tools = Companion("tools", tuple(python(TALKER, marker)))
        with contextlib.suppress(TaskReaderError), Companions([tools], experiment) as companions:
            Told().start(companions)
            if fails:
                raise TaskReaderError("no tasks")
        assert bool(list(experiment.rglob("tools.log"))) is fails


async def test_work_that_is_cancelled_by_the_user_stays_cancelled(experiment, marker):
    with Companions([Companion("tools", tuple(python(TALKER, marker)))], experiment) as companions:
        Told().start(companions)
        guarded = asyncio.ensure_future(companions.guard(asyncio.sleep(60)))
        await asyncio.sleep(0)
        guarded.cancel()
        for process in with_marker(marker):
            process.kill()
        with pytest.raises(asyncio.CancelledError):
            await guarded


def test_the_logs_move_into_the_run_and_go_on_there(experiment, marker, tmp_path):
    talk = f"echo Starting server on; read line < {tmp_path}/go; echo $line {marker}; sleep 600"
    (tmp_path / "go").touch()
    (tmp_path / "go").unlink()
    subprocess.run(["mkfifo", tmp_path / "go"], check=True)
    run = experiment / "2026_01_01_00_00_00"
    with Companions([Companion("env", in_shell(talk))], experiment) as companions:
        Told().start(companions)
        run.mkdir()
        companions.belong_to(run)
        (tmp_path / "go").write_text("and on\n")
        eventually(lambda: "and on" in (run / "companions" / "env.log").read_text(), "the log goes on")
    assert [path.name for path in experiment.iterdir()] == [run.name]
    with Companions([Companion("env", in_shell("echo Starting server on; sleep 600"))], experiment) as companions:
        Told().start(companions)
        companions.belong_to(run)
    assert len(list((run / "companions").glob("resumed_*/env.log"))) == 1


def test_logs_of_starts_that_came_to_nothing_go_with_the_next_start(experiment):
    (experiment / ".starting-999999999").mkdir(parents=True)
    failing(Companion("env", in_shell("exit 1")), experiment)
    assert len(list(experiment.glob(".starting-*"))) == 1
    assert not (experiment / ".starting-999999999").exists()
