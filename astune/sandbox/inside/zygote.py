"""The zygote: an interpreter that is ready, and from which each call is forked.

    parent      waits for the zygote, and then removes the folder that it worked in
    └─ zygote   reads requests from its socket; behind walls it is the first process of a PID namespace
       └─ warden, one a call: time, memory, report
          └─ guest: confined, then the code

The parent's end of the socket is closed when the parent ends, however it ends, and its process is watched too; then
everything below ends. The parent's memory is not accessible, since this is a new program; its environment is not
inherited.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from . import confine, family, guest, landlock, libc, seccomp
from .removal import remove_all
from .walls import Walls
from .warden import Call, Warden

_CONTROL = 0
"""The socket that requests come from is the zygote's standard input."""

_READY_MADE = (
    "argparse bisect collections contextlib copy csv dataclasses datetime decimal enum fractions functools hashlib "
    "heapq io itertools json math operator pathlib random re statistics string textwrap threading time typing"
)
"""Modules that code often imports: imported here once, they cost a call nothing."""


def main() -> NoReturn:
    spec = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(_CONTROL))
    parent = os.pidfd_open(os.getppid())
    proc = family.open_proc()
    confine.die_first(proc)
    os.close(proc)
    for name in _READY_MADE.split():
        importlib.import_module(name)
    try:
        walls = Walls() if spec["walled"] else None
        os.chmod(spec["base"], 0o711)  # nobody lives in a folder below
        _fork_from_parent(spec["base"])
        if walls is not None:
            walls.close_in(spec["base"], spec["readable"])
        else:
            landlock.version()
        seccomp.assemble(processes=walls is not None)
    except OSError as cause:
        control.send(json.dumps({"failed": str(cause)}).encode())
        os._exit(1)
    control.send(b"{}")
    guest.run(_serve(control, parent, walls, spec))


def _fork_from_parent(base: str) -> None:
    """Continue in a child process, whose parent removes `base` when the child has ended."""
    zygote = os.fork()
    if zygote == 0:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(0, 1 << 16)
    os.waitpid(zygote, 0)
    remove_all(base)
    os._exit(0)


def _serve(control: socket.socket, parent: int, walls: Walls | None, spec: dict[str, Any]) -> str:
    """Fork a warden for each request; returns in a guest only, with its code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens report for themselves
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has no handler, code cannot send to a namespace's first process
    gc.collect()
    gc.freeze()  # what is here already is never copied for a collection
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(parent, select.POLLIN)
    while True:
        if any(descriptor == parent for descriptor, _ in poller.poll()):
            os._exit(0)
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
        if not message:
            os._exit(0)
        call = Call(json.loads(message), descriptors)
        try:
            if (walls.fork() if walls is not None else os.fork()) == 0:
                control.close()
                os.close(parent)
                return Warden(call, walls, spec["base"], spec["readable"]).watch()
        except OSError as cause:
            socket.socket(fileno=os.dup(call.channel)).send(json.dumps({"failed": str(cause)}).encode())
        call.close()
