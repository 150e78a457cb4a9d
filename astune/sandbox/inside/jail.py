"""The jail of an agent program: namespaces around it, with a door to its model's address alone.

    jail              answers the door
    └─ waller         makes the namespaces for what it starts, and cannot start threads from then on
       └─ init        first process of a PID namespace, in a file tree of its own
          └─ program  confined, in a network namespace with nothing but the door

Each waits for the one below it, and ends with the one above it.

Standard streams, environment and arguments are handed on. The program lives in a new folder in memory, `/scratch`. The
exit status is the program's, 128 + n where signal n ended it, 126 where it could not be confined: then it did not
start, and the reason is on standard error.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from . import confine, door, libc
from .walls import Walls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

TASK = f"{confine.SCRATCH}/task.json"
"""Path of the program's task inside."""
FAILED = "the sandbox could not be set up: "
"""Prefix of the reason on standard error."""
_ACCOUNTS = "/etc/passwd"
_WORK = f"{confine.SCRATCH}/work"
_NOT_CONFINED, _NOT_STARTED = 126, 127


def main() -> NoReturn:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        _jail(spec, command)
    except Exception as cause:
        _fail(_NOT_CONFINED, f"{FAILED}{cause}")


def _jail(spec: dict[str, Any], command: list[str]) -> NoReturn:
    own_end, child_end = socket.socketpair()
    waller = os.fork()
    if waller == 0:
        own_end.close()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        _wall(spec, command, child_end)
    child_end.close()
    _, listening, _, _ = socket.recv_fds(own_end, 1, 1)
    if listening:
        door.lead(socket.socket(fileno=listening[0]), tuple(spec["door"]))
    os._exit(_status_of(waller))


def _wall(spec: dict[str, Any], command: list[str], channel: socket.socket) -> NoReturn:
    walls = Walls()
    confine.die_first(walls.proc)
    init = os.fork()
    if init == 0:
        _init(spec, command, walls, channel)
    channel.close()
    os._exit(_status_of(init))


def _init(spec: dict[str, Any], command: list[str], walls: Walls, channel: socket.socket) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has no handler, nobody can send to a namespace's first process
    with open(spec["task"], "rb") as file:
        task = file.read()
    walls.close_in(spec["base"], spec["readable"], furnish=_furnish)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    Walls.add_scratch(spec["memory_mb"])
    os.mkdir(_WORK)
    with open(TASK, "wb") as file:
        file.write(task)
    program = os.fork()
    if program == 0:
        _program(spec, command, channel)
    channel.close()
    os._exit(_status_of(program))


def _furnish(base: str) -> None:
    """Give libraries what they look for: an account, and where semaphores are."""
    os.makedirs(os.path.dirname(base + _ACCOUNTS), exist_ok=True)
    with open(base + _ACCOUNTS, "w") as file:
        file.write(f"sandbox:x:{confine.NOBODY}:{confine.NOBODY}::{confine.SCRATCH}:/bin/sh\n")
    if not os.path.exists(f"{base}/dev/shm"):  # a file that is shown may lie there
        os.symlink(confine.SCRATCH, f"{base}/dev/shm")


def _program(spec: dict[str, Any], command: list[str], channel: socket.socket) -> NoReturn:
    os.setsid()
    confine.settle(confine.SCRATCH)
    os.chdir(_WORK)
    os.environ.update(PWD=_WORK, ASTUNE_TASK=TASK, USER="sandbox")
    confine.enter_own_user_namespace()
    socket.send_fds(channel, [b"d"], [door.open_door(spec["door"][1]).detach()])
    confine.limit_program(spec["memory_mb"])
    confine.give_up([*spec["readable"], _ACCOUNTS], confine.SCRATCH, walled=True, network=True)
    os.closerange(3, 1 << 16)
    for number in (signal.SIGPIPE, signal.SIGINT):  # what is ignored is inherited
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as cause:
        _fail(_NOT_STARTED, f"{command[0]} could not be started in the sandbox: {cause}")


def _status_of(child: int) -> int:
    """Wait for a child, and for orphans that end meanwhile; return its exit status as shells do."""
    while True:
        ended, status = os.wait()
        if ended == child:
            returned = os.waitstatus_to_exitcode(status)
            return returned if returned >= 0 else 128 - returned


def _fail(status: int, why: str) -> NoReturn:
    os.write(2, f"{why}\n".encode(errors="replace"))
    os._exit(status)
