"""A guest that is a program of its own, for backends that start an interpreter for each call.

Its argument says how to confine itself. Before any code runs it says so on a pipe and closes that; where nothing came
over the pipe, it was not the code that ended. The code is its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from . import confine, guest

READY = b"ready"


def main() -> NoReturn:
    spec = json.loads(sys.argv[1])
    source = _read_code()
    os.set_inheritable(spec["ready"], False)
    if spec["walled"]:
        _confine(spec)
    else:
        confine.settle(spec["scratch"])
        confine.limit(spec["timeout_s"], spec["memory_mb"])
        _limit_own_user(spec["processes"])
    os.write(spec["ready"], READY)
    os.closerange(3, 1 << 16)
    guest.run(source)


def _read_code() -> str:
    with open(0, "rb", closefd=False) as file:
        source = file.read().decode("utf-8", "surrogatepass")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    return source


def _confine(spec: dict[str, Any]) -> None:
    confine.settle(confine.SCRATCH)
    if os.geteuid() == 0:
        confine.become_nobody(keep_administration=True)
    confine.enter_own_user_namespace()
    confine.limit_processes(spec["processes"])
    confine.limit(spec["timeout_s"], spec["memory_mb"])
    confine.give_up(spec["readable"], confine.SCRATCH, walled=True)


def _limit_own_user(processes: int) -> None:
    """So many more than the user has now; root's processes are not limited by this."""
    try:
        running = [name for name in os.listdir("/proc") if name.isdigit()]
        mine = [name for name in running if os.stat(f"/proc/{name}").st_uid == os.getuid()]
        threads = sum(len(os.listdir(f"/proc/{name}/task")) for name in mine)
    except OSError:  # one has ended meanwhile, or the system has no /proc
        return
    confine.limit_processes(threads + processes)
