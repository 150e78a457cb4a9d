"""Process side of a Python process that answers calls, one at a time, and ends with its starter.

`worker.py` starts it with its ends of a channel and a control socket as arguments, and of a lifeline as its standard
input. A process that forks receives over the control socket, for each fork, a folder for temporary files, a channel and
a lifeline.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable

from astune.processes.forked import close_all_but
from astune.processes.link import Link
from astune.schema import AstuneError
from astune.schema.plain_json import encoded

CAN_FORK = sys.platform == "linux"
"""Whether forking is supported: on other systems the end of a process that is not a child cannot be detected."""
_RESTARTED = "restarted"
"""The last word on the command line of a process that was started again, with few variables."""
_LONGEST_PATH = 4096


class TiedProcess:
    """State of this process before it answers calls: from now on it ends with its starter.

    Args:
        channel: descriptor of the socket for calls and answers.
        control: descriptor of the socket for what forked processes need.
    """

    def __init__(self, channel: int, control: int) -> None:
        self._lifeline = end_with_the_starter()
        self._channel = channel
        self._control = control
        self._link = Link(socket.socket(fileno=channel))

    def keep_variables(self, names: Iterable[str]) -> None:
        """Remove all other variables from this process's memory, which may restart its program."""
        if sys.argv[-1] == _RESTARTED:
            return
        os.set_inheritable(self._channel, True)
        os.dup2(self._lifeline, sys.stdin.fileno())
        kept = {name: os.environ[name] for name in names if name in os.environ}
        os.execve(sys.executable, [*sys.orig_argv, _RESTARTED], kept)

    def refuse(self, error: AstuneError) -> None:
        """Say why this process can answer nothing."""
        self._link.send(encoded({"unusable": {"message": error.message, "hint": error.hint}}))

    def ready(self, *, reusable: bool, forks: bool) -> Link:
        """Report that this process can answer calls, and return the source of the calls.

        Args:
            reusable: whether it can be reused after it was returned.
            forks: return in processes that are forked from this one on demand, and not in this one; if the system
                cannot do that, return here.
        """
        self._say_ready(reusable=reusable, forks=forks and CAN_FORK)
        if forks and CAN_FORK:
            self._fork_on_demand(socket.socket(fileno=self._control))
            self._say_ready(reusable=reusable, forks=False)
        return self._link

    def _say_ready(self, *, reusable: bool, forks: bool) -> None:
        self._link.send(encoded({"ready": {"pid": os.getpid(), "reusable": reusable, "forks": forks}}))

    def _fork_on_demand(self, control: socket.socket) -> None:
        """Fork a process for each folder with descriptors; returns in such a process, with its own channel."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the starter sees by itself when one has ended
        while True:
            folder, descriptors, _, _ = socket.recv_fds(control, _LONGEST_PATH, 2)
            if not folder:
                os._exit(0)
            if os.fork() == 0:
                channel, lifeline = descriptors
                self._link.close()
                control.close()
                os.setsid()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(lifeline, sys.stdin.fileno())
                close_all_but(channel)
                tempfile.tempdir = os.environ["TMPDIR"] = os.fsdecode(folder)
                end_with_the_starter()
                self._link = Link(socket.socket(fileno=channel))
                return
            for descriptor in descriptors:
                os.close(descriptor)


def end_with_the_starter() -> int:
    """Arrange that this process's group is killed when its starter ends, however it ends.

    Standard input is a pipe whose other end the starter holds and never writes to. Linux kills this process's group
    when that end closes, even while it computes (`F_SETOWN` with a negative number is a group, `F_SETSIG` the signal in
    place of SIGIO: fcntl(2)). Elsewhere the process ends after its call.

    Returns:
        The pipe's end, which is no longer standard input.
    """
    lifeline = os.dup(sys.stdin.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # code that reads input finds its end
    if sys.platform != "linux":
        return lifeline
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it ended before this was set up
        os.killpg(os.getpgrp(), signal.SIGKILL)
    return lifeline
