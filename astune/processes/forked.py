"""A process forked from this one: it inherits imports and state, and its changes stay inside it.

The parent trusts only its answers, and waits no longer than the timeout. It ends with the parent.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import Any, NoReturn

from astune.processes._guardian import PR_SET_PDEATHSIG, prctl
from astune.processes.ending import how_it_ended
from astune.processes.link import Link, serve
from astune.schema import EnvError
from astune.schema.plain_json import encoded

LARGEST_ANSWER = 1 << 24
"""Bytes of one answer."""
_ENDS_S = 1.0
"""Seconds from the end of its channel to its own."""


class Ended(Exception):
    """The process ended before it answered, or was ended since it took too long."""


class Raised(EnvError):
    """The target's method raised, according to the process."""


class Forked:
    """A child that answers requests by the target's methods, one at a time.

    Args:
        target: a copy of it lives in the child.
        name: what the child is called in errors.
    """

    def __init__(self, target: object, *, name: str) -> None:
        self._name = name
        own_end, child_end = socket.socketpair()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _serve(child_end.fileno(), target, parent)
        child_end.close()
        self._link = Link(own_end, largest=LARGEST_ANSWER)

    def ask(self, call: str, *, timeout_s: float, **given: Any) -> Any:
        """Call the target's method and return its result.

        Raises:
            Raised: it raised.
            EnvError: the system ended the process.
            Ended: the process ended by itself, or did not answer in time.
        """
        try:
            self._link.send(encoded({"call": call, "given": given}))
            answer = self._link.receive(timeout_s)
        except TimeoutError:
            self.end()
            raise Ended(f"took longer than {timeout_s:g} s") from None
        except (OSError, ValueError):  # the process is gone, or sent something other than an answer
            answer = None
        if answer is None:
            raise self._ending()
        if "data" not in answer:
            raise Raised(f"{self._name}, {call}: {answer.get('refused') or answer.get('failed')}")
        return answer["data"]

    def end(self) -> None:
        """Kill it; no-op if repeated."""
        self._link.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _ending(self) -> Exception:
        """Describe how it ended; one that only stopped responding is ended first."""
        status = self._status()
        self.end()
        if status is None:
            return Ended("stopped answering")
        if status == -signal.SIGKILL:
            return EnvError(f"{self._name} was killed", hint="the system kills processes when memory is short")
        return Ended(how_it_ended(status))

    def _status(self) -> int | None:
        """Return the exit status, or below 0 the signal that ended it; None if it is still running."""
        give_up = time.monotonic() + _ENDS_S
        while self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > give_up:
                break
            time.sleep(0.01)
        return None


def close_all_but(descriptor: int) -> None:
    """Close all open descriptors except `descriptor` and the standard streams."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _leave_standard_streams() -> None:
    """Redirect the standard streams: the parent's are its log, which a child could write to and truncate."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)


def _serve(channel: int, target: object, parent: int) -> NoReturn:
    """Serve calls in the child until its channel is closed; none of the parent's own work is repeated."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            close_all_but(channel)
            _leave_standard_streams()
            serve(Link(socket.socket(fileno=channel)), target)
    finally:
        os._exit(0)
