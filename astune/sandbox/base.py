"""Result of a sandbox call, and the interface of a backend."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Literal, Protocol

from astune.config.schema import SandboxLimits

_SHELL_SIGNAL, _LAST_SIGNAL = 128, 64
"""Offset that a shell adds to the number of a signal, and the last signal."""

EndedBy = Literal["exit", "timeout", "memory", "output", "killed"]


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Result of running the code; that it failed or had to be stopped is not an error.

    Args:
        returncode: exit status; below 0 the number of the signal that ended it, -9 where it was stopped.
        stdout: what it printed, at most `output_kb` of both streams together; bytes that are not UTF-8 become �.
        ended_by: `exit` by itself, one of the limits, or `killed` by a signal that it caused, such as a segfault.
    """

    returncode: int
    stdout: str
    stderr: str
    ended_by: EndedBy


class Backend(Protocol):
    """A method of running code. It is started before its first call; calls may run concurrently, from any event
    loop."""

    name: str

    async def start(self) -> None:
        """Start the backend; raise SandboxError if this machine does not allow it."""

    async def run(self, code: str, limits: SandboxLimits, *, name: str) -> SandboxResult: ...

    async def aclose(self) -> None:
        """End what was started."""


def wait_status(returncode: int, *, as_shells: bool) -> int:
    """Return the wait status of a process from its exit status, which is below 0 for a signal.

    Args:
        as_shells: 128 + n is signal n; code that ends itself with such a status is then reported as ended by a signal.
    """
    if as_shells and _SHELL_SIGNAL < returncode <= _SHELL_SIGNAL + _LAST_SIGNAL:
        return returncode - _SHELL_SIGNAL
    return -returncode if returncode < 0 else returncode << 8


def result_of(status: int, stopped: EndedBy | None, stdout: bytes, stderr: bytes) -> SandboxResult:
    """Return the result of a process with this wait status; `stopped` is our reason for stopping it.

    A SIGKILL that was not ours is the kernel's or the guest's, because memory ran out. Excessive output was cut, even
    if the process ended before it was stopped.
    """
    returncode = os.waitstatus_to_exitcode(status)
    if stopped == "output":
        returncode = -signal.SIGKILL
    ended_by: EndedBy = "exit" if returncode >= 0 else "killed"
    if stopped is not None and returncode == -signal.SIGKILL:
        ended_by = stopped
    elif returncode == -signal.SIGKILL:
        ended_by = "memory"
    elif returncode == -signal.SIGXCPU:
        ended_by = "timeout"
    return SandboxResult(returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"), ended_by)
