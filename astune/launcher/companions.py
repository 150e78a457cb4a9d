"""Companions of a run: started before it, watched during it, ended with it.

Their output is kept in the run's `companions/NAME.log`. They are started before the run has a folder, since tasks may
come from one of them; until then the logs are in `.starting-<process id>` beside the experiment's runs. They are kept
there if no run starts, and removed after an evaluation, which has no run. A companion that already responds is reused,
and not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from astune.launcher.companion import Companion
from astune.launcher.health import describe_listener, origin_of, port_is_free, port_of, why_not_answering
from astune.processes.ending import how_it_ended
from astune.processes.guarded import GuardedProcess
from astune.processes.records import started_at
from astune.schema import AstuneError, CompanionError, DeadlineExceeded

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_SHOWN_LINES = 20
_SHOWN_BYTES = 4000
_STARTING = ".starting-"
_TAKEN = re.compile(
    r"address already in use|EADDRINUSE|only one usage of each socket|port \d+ is (already )?in use", re.I
)
_PORT = re.compile(r"(?:[:=\s]|port\D{1,3})(\d{4,5})\b", re.I)
_NOT_FOUND = 127
"""The exit status of a shell that does not find the command."""


class Companions:
    """Started companions; a context that ends them. `experiment` is the folder of the experiment's runs."""

    def __init__(self, companions: Sequence[Companion], experiment: Path) -> None:
        self._companions = list(companions)
        self._experiment = experiment
        self._folder = experiment / f"{_STARTING}{os.getpid()}"
        self._running: list[tuple[Companion, GuardedProcess]] = []
        self._died: list[tuple[Companion, GuardedProcess]] = []

    @property
    def names(self) -> list[str]:
        """The companions that were started here."""
        return [companion.name for companion, _ in self._running]

    @property
    def folder(self) -> Path:
        """The folder of their logs."""
        return self._folder

    def start(self, tell: Callable[[str], None], waiting: Callable[[str, float], None]) -> None:
        """Start the companions in order, each after the previous one has started.

        Args:
            tell: receives a line for each that has started.
            waiting: called repeatedly with what is being waited for, and for how many seconds.

        Raises:
            CompanionError: one could not be started, or ended during its start; or another process has the port of one
                that is not shared.
            DeadlineExceeded: one did not start in time.
        """
        for companion in self._companions:
            if companion.health_url is not None and why_not_answering(companion.health_url) is None:
                _require_shared(companion, companion.health_url)
                where = companion.page or companion.health_url
                tell(f"companion {companion.name}: {where} already responds and is reused")
                continue
            began = time.monotonic()
            process = self._launch(companion)
            how = self._wait_for(companion, process, waiting)
            tell(f"companion {companion.name}: process {process.pid}, {how} after {time.monotonic() - began:.1f} s")

    def belong_to(self, run: Path) -> None:
        """Move the logs into the run's folder; those of a resumed run into a separate folder."""
        for _, process in self._running:
            process.belongs_to(str(run))
        if not self._running:
            return
        target = run / "companions"
        if target.exists():
            target = target / f"resumed_{datetime.datetime.now():%Y_%m_%d_%H_%M_%S}"
        self._folder.rename(target)  # what is open stays open
        self._folder = target

    async def guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; if a required companion dies, cancel it, wait for its end, and raise.

        Raises:
            CompanionError: a companion died, or the work failed at one whose address the failure contains; with its
                last lines.
        """
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        task = asyncio.ensure_future(work)
        dead: list[tuple[Companion, GuardedProcess]] = []

        def end_work(companion: Companion, process: GuardedProcess) -> None:
            if not companion.needed:
                _log.warning("the run continues without it: %s", self._death(companion, process).message)
            elif not dead and not task.done() and not (own is not None and own.cancelling()):
                dead.append((companion, process))
                task.cancel()

        for companion, process in self._running:
            process.on_death(partial(_tell, loop, partial(end_work, companion, process)))
        try:
            await task
        except asyncio.CancelledError:
            if dead:
                raise self._death(*dead[0]) from None
            raise
        except AstuneError as failure:
            for companion, process in self._running:
                named = companion.health_url is not None and origin_of(companion.health_url) in failure.message
                if named and not process.has_died:
                    message = f"{failure.message}; of companion {companion.name}, {self._last_lines(companion)}"
                    raise CompanionError(message, hint=failure.hint) from failure
            raise
        finally:
            for _, process in self._running:
                process.on_death(lambda: None)

    def close(self) -> None:
        """End all that were started here, the last one first. Idempotent."""
        self._died += [pair for pair in self._running if pair[0].needed and pair[1].has_died]
        while self._running:
            self._running[-1][1].close()
            self._running.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if cause is None and self._folder.name.startswith(_STARTING):  # nothing failed, and no run needs the logs
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._died and isinstance(cause, Exception) and not isinstance(cause, CompanionError):
            raise self._death(*self._died[0]) from cause  # likelier the reason than what was missing without it

    def _log(self, companion: Companion) -> Path:
        return self._folder / f"{companion.name}.log"

    def _launch(self, companion: Companion) -> GuardedProcess:
        try:
            _remove_abandoned(self._experiment)
            self._folder.mkdir(parents=True, exist_ok=True)
            self._log(companion).write_bytes(b"")
        except OSError as cause:
            raise CompanionError(
                f"the log of companion {companion.name} cannot be written: {cause}",
                hint="check the permissions of record_dir and the space left",
            ) from cause
        environment = {"PYTHONUNBUFFERED": "1", **os.environ}  # or a success message waits in a buffer
        process = GuardedProcess(
            companion.name,
            companion.command,
            self._log(companion).resolve(),
            environment=environment,
            run=str(self._experiment),
        )
        self._running.append((companion, process))
        return process

    def _wait_for(self, companion: Companion, process: GuardedProcess, waiting: Callable[[str, float], None]) -> str:
        """Wait until it has started; return how that was detected."""
        began = time.monotonic()
        sought = companion.health_url or "a success message in its output"
        key = f"astune.companions.{companion.name}"
        where = f"{key}.health_url" if companion.health_url else f"{key}.success_message or {key}.health_url"
        line = f"companion {companion.name}: waiting for {sought} ({where}), at most {companion.timeout_s:g} s"
        while True:
            if process.has_died:
                raise self._death(companion, process)
            if companion.health_url is not None:
                missing = why_not_answering(companion.health_url)
                seen = f"{companion.page or companion.health_url} answers" if missing is None else None
            else:
                missing = "none of its messages has come"
                seen = self._success_message(companion)
            if seen is not None and not process.has_died:
                return seen
            passed = time.monotonic() - began
            if passed > companion.timeout_s:
                raise self._too_late(companion, sought, missing or "")
            waiting(line, passed)
            time.sleep(_POLL_S)

    def _success_message(self, companion: Companion) -> str | None:
        written = self._log(companion).read_text(encoding="utf-8", errors="replace")
        return next((f'"{message}" was written' for message in companion.success_messages if message in written), None)

    def _death(self, companion: Companion, process: GuardedProcess) -> CompanionError:
        status = process.status
        how = "was ended together with its guardian process" if status is None else how_it_ended(status)
        return CompanionError(
            f"companion {companion.name} {how}; {self._last_lines(companion)}", hint=self._hint(companion, status)
        )

    def _too_late(self, companion: Companion, sought: str, missing: str) -> DeadlineExceeded:
        key = f"astune.companions.{companion.name}"
        hint = f"correct {key}.health_url, or give it longer with {key}.timeout_s"
        if companion.health_url is None:
            hint = f"name what it writes in {key}.success_message or its address in {key}.health_url"
        return DeadlineExceeded(
            f"companion {companion.name}: waiting for {sought} took longer than {companion.timeout_s:g} s ({missing}); "
            f"{self._last_lines(companion)}",
            hint=hint,
        )

    def _last_lines(self, companion: Companion) -> str:
        lines = self._tail(companion).splitlines()[-_SHOWN_LINES:]
        where = f"its whole output is in {self._log(companion)}"
        return (
            f"its last lines ({where}):\n" + "\n".join(f"  {line}" for line in lines) if lines else "it wrote nothing"
        )

    def _tail(self, companion: Companion) -> str:
        try:
            return self._log(companion).read_bytes()[-_SHOWN_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def _hint(self, companion: Companion, status: int | None) -> str:
        tail = self._tail(companion)
        if _TAKEN.search(tail):
            port = _taken_port(companion, tail)
            if port is None:
                return "its port is taken: end what holds it, or give the companion another port"
            return f"port {port} is taken by {describe_listener(port)}: end that, or give the companion another port"
        if status == _NOT_FOUND:
            return "its command was not found: check its spelling, or activate its environment in the command"
        return f"run it by hand to see more: {shlex.join(companion.command)}"


def _require_shared(companion: Companion, health_url: str) -> None:
    if companion.port_key:
        raise CompanionError(
            f"companion {companion.name}: {describe_listener(port_of(health_url) or 0)} already responds at "
            f"{origin_of(health_url)}, but a run starts its own",
            hint=f"set {companion.port_key} to another port, or set engine.base_url to use that server",
        )


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """Schedule the call on the loop; a closed loop has nothing left to end."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


def _taken_port(companion: Companion, tail: str) -> int | None:
    """The port that the companion could not have: of those that it names, the first that is not free."""
    ports = [port_of(companion.health_url)] if companion.health_url is not None else []
    ports += [int(found) for found in _PORT.findall(f"{tail}\n{shlex.join(companion.command)}")]
    return next((port for port in ports if port is not None and port < 65536 and not port_is_free(port)), None)


def _remove_abandoned(experiment: Path) -> None:
    """Logs of starts that came to nothing, once their process is gone."""
    for folder in experiment.glob(f"{_STARTING}*"):
        pid = folder.name.removeprefix(_STARTING)
        if pid.isdigit() and int(pid) != os.getpid() and started_at(int(pid)) is None:
            shutil.rmtree(folder, ignore_errors=True)
