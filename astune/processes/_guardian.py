"""The guardian: starts one command, and ends it with everything that it started when the launcher is gone.

Run as `python -I -S _guardian.py LAUNCHER_PID GRACE_S LOG COMMAND...`, with the standard library alone, so that it is
there within some tens of milliseconds. It knows nothing of what it guards.

    stdin   nothing is ever written: its end is the order to end everything, as are SIGTERM and the launcher's own end
    stdout  one JSON object a line: {"pid"} the command runs, {"status"} it ended; then nothing, when nothing is left

It leads a session of its own, and so does the command: a Ctrl-C at the terminal reaches neither. Under Linux, orphans
below it become its children (PR_SET_CHILD_SUBREAPER), so that a process that went into the background, or into yet
another session, is still found. A command that ends well and leaves processes behind is such a one, and goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

TICK_S = 0.1
KILL_S = 5.0
"""Seconds that the kernel gets for what was killed."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Guardian:
    def __init__(self, launcher_pid: int, grace_s: float) -> None:
        self._launcher_pid = launcher_pid
        self._grace_s = grace_s
        self._leader = 0
        self._status: int | None = None
        self._told_to_end = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_end = True

    def start(self, log: str, command: list[str]) -> None:
        self._leader = os.fork()
        if self._leader == 0:
            become(log, command)
        say(pid=self._leader)

    def watch(self) -> None:
        """Until the launcher is gone, the command failed, or nothing is left of it."""
        while not self._told_to_end and os.getppid() == self._launcher_pid:
            self._reap()
            if self._status not in (None, 0) or (self._status == 0 and not self._living()):
                return
            ready, _, _ = select.select([0], [], [], TICK_S)
            if ready and not os.read(0, 4096):
                return

    def end_everything(self) -> None:
        """SIGTERM, then SIGKILL: to the command, and to the rest once that is gone or half of the time has passed.

        A server that ends its own workers in order takes longer, or hangs, where they are ended under its feet.
        """
        for number, patience_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, KILL_S)):
            began = time.monotonic()
            told: set[int] = set()
            while (passed := time.monotonic() - began) < patience_s:
                self._reap()
                living = self._living()
                if not living:
                    return
                alone = number == signal.SIGTERM and self._leader in living and passed < patience_s / 2
                for target in ({self._leader} if alone else living) - told:
                    with contextlib.suppress(OSError):
                        os.kill(target, number)
                    told.add(target)
                time.sleep(TICK_S / 2)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._leader:
                self._status = os.waitstatus_to_exitcode(status)
                say(status=self._status)

    def _living(self) -> set[int]:
        """What can be sent a signal: every descendant; where there is no /proc, the command's group (negative)."""
        if os.path.isdir("/proc/self"):
            return descendants(os.getpid())
        try:
            os.kill(-self._leader, 0)
        except OSError:
            return set()
        return {-self._leader}


def become(log: str, command: list[str]) -> NoReturn:
    """Turn this forked process into the command."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # should the guardian itself be killed
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored would be inherited
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], command)
    except OSError as cause:
        os.write(2, f"{command[0]} could not be started: {cause}\n".encode())
    finally:
        os._exit(127)


def descendants(root: int) -> set[int]:
    """Every living process below `root`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), []):
            found.add(child)
            pending.append(child)
    return found


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def say(**message: Any) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone
        os.write(1, json.dumps(message).encode() + b"\n")


def main() -> None:
    guardian = Guardian(int(sys.argv[1]), float(sys.argv[2]))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, guardian.on_signal)  # handlers, unlike ignoring, are not inherited by the command
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guardian.start(sys.argv[3], sys.argv[4:])
    guardian.watch()
    guardian.end_everything()


if __name__ == "__main__":
    main()
