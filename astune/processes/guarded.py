"""A child process that never outlives this one: not after Ctrl-C, and not after `kill -9`.

A small guardian process (`_guardian.py`) starts the command, adopts its orphans, and ends all of them when this process
closes it or is gone. Both are recorded, so that `astune --kill` finds them. Purpose and readiness of the process are up
to the caller.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from astune.processes import _guardian
from astune.processes.ending import kill_group, wait_or_kill
from astune.processes.records import ProcessRecord, forget, record
from astune.schema import CompanionError, start_in_thread

GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL."""
_START_S = 30.0


def guarded(
    command: Sequence[str],
    *,
    grace_s: float,
    report: int,
    log: str | None = None,
    source: Path | None = None,
    memory: int = 0,
    alone: bool = False,
) -> list[str]:
    """The guardian's own command for `command`, with the orders that `_guardian.py` describes."""
    orders = {
        "launcher": os.getpid(),
        "grace_s": grace_s,
        "log": log,
        "input": str(source) if source else None,
        "report": report,
        "memory": memory,
        "alone": alone,
    }
    return [sys.executable, "-I", "-S", _guardian.__file__, json.dumps(orders), *command]


class GuardedProcess:
    """A running command with its descendants; `close` it, or let this process end. Raises CompanionError if no process
    could be started.

    Args:
        name: name for records and errors.
        command: program and arguments; it runs in this working directory.
        log: the file that its output is appended to.
        environment: replaces this process's own.
        run: its run, for the record.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        run: str = "",
        grace_s: float = GRACE_S,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.pid = 0
        self.status: int | None = None
        """The command's exit status, negative for a signal's number; None while it runs."""
        self._grace_s = grace_s
        self._began = threading.Event()
        self._ended = threading.Event()
        self._closing = False
        self._on_death: Callable[[], None] = lambda: None
        self._records: list[ProcessRecord] = []
        try:
            self._guardian = subprocess.Popen(
                guarded(self.command, grace_s=grace_s, log=str(log), report=1),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
        except OSError as cause:
            raise CompanionError(f"the guardian process of {name} could not be started: {cause}") from cause
        start_in_thread(self._listen, name=f"astune-guardian-{name}")
        if not self._began.wait(_START_S) or not self.pid:
            self._guardian.kill()
            raise CompanionError(f"the guardian process of {name} did not start the command within {_START_S:g} s")
        self.belongs_to(run)

    @property
    def has_died(self) -> bool:
        """Return whether it failed, or nothing of it is left, without having been closed."""
        return self._ended.is_set() and not self._closing

    def belongs_to(self, run: str) -> None:
        """Record the processes as parts of `run`."""
        guardian = record(self._guardian.pid, name=f"guardian of {self.name}", run=run)
        command = record(self.pid, name=self.name, command=shlex.join(self.command), run=run)
        self._records = [each for each in (guardian, command) if each is not None]

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call `callback` in a new thread when it dies; at once if it already died."""
        self._on_death = callback
        if self.has_died:
            callback()

    def close(self) -> None:
        """End it with everything that it started, and wait for that. Idempotent."""
        self._closing = True
        if self._guardian.stdin is not None:
            self._guardian.stdin.close()
        self._guardian.terminate()  # a process forked from this one may hold the pipe open
        if wait_or_kill(self._guardian, self._grace_s + _guardian.KILL_S + 5.0) != 0:  # killed before it was finished
            kill_group(self.pid)
        for each in self._records:
            forget(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        for line in self._guardian.stdout or ():
            message = json.loads(line)
            if "pid" in message:
                self.pid = message["pid"]
                self._began.set()
            else:
                self.status = message["status"]
                if self.status != 0:
                    self._die()
        self._began.set()
        self._die()

    def _die(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            if not self._closing:
                self._on_death()
