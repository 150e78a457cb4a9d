"""The guardian process: starts one command, and ends it and its descendants when the launcher is gone.

Run as `python -I -S _guardian.py ORDERS COMMAND...`, with the standard library alone, so that it starts within some
tens of milliseconds. It is independent of the command. The orders are a JSON object:

    launcher  the process that started this one: when it is gone, everything ends
    grace_s   seconds between SIGTERM and SIGKILL
    log       the file that the command's output is appended to; without one the command has this process's stdout
    input     the file that the command reads as standard input; without one it reads nothing
    report    the file descriptor for reports
    memory    memory limit in bytes of the command and its descendants; 0 is no limit
    alone     whether its children end with it, even after success

    stdin     nothing is ever written: closing it ends everything, as do SIGTERM and the launcher's end
    report    one JSON object a line: {"pid"} the command runs, {"status"} it ended, {"memory"} it held that many bytes
              and is ended; then nothing, when nothing is left

It leads its own session, and so does the command: a Ctrl-C at the terminal reaches neither. Under Linux, orphans below
it become its children (PR_SET_CHILD_SUBREAPER), so that a process that went into the background, or into yet another
session, is still found. The processes that a successful command leaves, such as a daemon, continue unless `alone` is
set.
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
MEMORY_EVERY_S = 0.2
KILL_S = 5.0
"""Seconds for the kernel to end killed processes."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Guardian:
    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        os.set_inheritable(orders["report"], False)  # the command could write reports of its own
        self._leader = 0
        self._status: int | None = None
        self._must_end = False
        self._memory_read_at = 0.0
        self._woken, waking = os.pipe()
        for end in (self._woken, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_order)  # handlers, unlike ignoring, are not inherited by the command
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes `watch`

    def _on_order(self, _number: int, _frame: FrameType | None) -> None:
        self._must_end = True

    def start(self, command: list[str]) -> None:
        self._leader = os.fork()
        if self._leader == 0:
            become(command, log=self._orders.get("log"), source=self._orders.get("input") or os.devnull)
        self._say(pid=self._leader)

    def watch(self) -> None:
        """Watch until the launcher is gone, the command failed or exceeds its memory, or no process is left."""
        while not self._must_end and os.getppid() == self._orders["launcher"]:
            self._reap()
            if self._status is not None and (self._status != 0 or self._orders["alone"] or not self._living()):
                return
            if self._holds_too_much():
                return
            ready, _, _ = select.select([0, self._woken], [], [], TICK_S)
            if 0 in ready and not os.read(0, 4096):
                return
            if self._woken in ready:
                os.read(self._woken, 4096)

    def _holds_too_much(self) -> bool:
        if not self._orders["memory"] or time.monotonic() < self._memory_read_at + MEMORY_EVERY_S:
            return False
        self._memory_read_at = time.monotonic()
        memory = sum(resident(pid) for pid in below(os.getpid()))
        if memory > self._orders["memory"]:
            self._say(memory=memory)
        return memory > self._orders["memory"]

    def end_everything(self) -> None:
        """Send SIGTERM, then SIGKILL: to the command, and to the rest once it is gone or half of the time has passed.

        A server that shuts down its own workers takes longer, or hangs, if they are ended first.
        """
        for number, patience_s in ((signal.SIGTERM, self._orders["grace_s"]), (signal.SIGKILL, KILL_S)):
            began = time.monotonic()
            signalled: set[int] = set()
            while (passed := time.monotonic() - began) < patience_s:
                self._reap()
                living = self._living()
                if not living:
                    return
                alone = number == signal.SIGTERM and self._leader in living and passed < patience_s / 2
                for target in ({self._leader} if alone else living) - signalled:
                    with contextlib.suppress(OSError):
                        os.kill(target, number)
                    signalled.add(target)
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
                self._say(status=self._status)

    def _say(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone
            os.write(self._orders["report"], json.dumps(message).encode() + b"\n")

    def _living(self) -> set[int]:
        """Return what can be signalled: every descendant; without /proc, the command's group (negative)."""
        if os.path.isdir("/proc/self"):
            return descendants(os.getpid())
        try:
            os.kill(-self._leader, 0)
        except OSError:
            return set()
        return {-self._leader}


def become(command: list[str], *, log: str | None, source: str) -> NoReturn:
    """Turn this forked process into the command, which reads the file `source`."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # should the guardian itself be killed
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored would be inherited
        os.dup2(os.open(source, os.O_RDONLY), 0)
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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


def below(root: int) -> set[int]:
    """`descendants`, at the price of those alone where the kernel lists a process's children."""
    found: set[int] = set()
    pending = [root]
    while pending:
        pid = pending.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                    children = {int(child) for child in file.read().split()} - found
                found |= children
                pending += children
        except OSError:
            if pid == root:  # the kernel lists no children
                return descendants(root) if os.path.isdir("/proc/self") else set()
    return found


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended or is not accessible."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    guardian = Guardian(json.loads(sys.argv[1]))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    guardian.start(sys.argv[2:])
    guardian.watch()
    guardian.end_everything()


if __name__ == "__main__":
    main()
