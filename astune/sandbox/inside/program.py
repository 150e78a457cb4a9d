"""Guest process for backends that start an interpreter for each call.

Its arguments describe the confinement, and the code is its standard input. Before any code runs it reports that on a
pipe and closes it; without this report, the failure was not the code's.
"""

from __future__ import annotations

import os
import sys

from . import confine, guest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

READY = b"ready"


def main() -> NoReturn:
    proc, ready, backend, scratch, timeout_s, memory_mb, processes, *readable = sys.argv[1:]
    os.set_inheritable(int(ready), False)
    confine.die_first(int(proc))
    os.close(int(proc))
    source = _read_code()
    if backend == "bubblewrap":
        confine.settle(confine.SCRATCH)
        if os.geteuid() == 0:
            confine.become_nobody(keep_administration=True)
        confine.enter_own_user_namespace()
        confine.limit_processes(int(processes))
        confine.limit(float(timeout_s), int(memory_mb))
        confine.give_up(readable, confine.SCRATCH, walled=True)
    else:
        confine.settle(scratch)
        confine.limit(float(timeout_s), int(memory_mb))
        _limit_own_user(int(processes))
    os.write(int(ready), READY)
    os.closerange(3, 1 << 16)
    guest.run(source)


def _read_code() -> str:
    with open(0, "rb", closefd=False) as file:
        source = file.read().decode("utf-8", "surrogatepass")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return source


def _limit_own_user(processes: int) -> None:
    """So many more than the user has now; root's processes are not limited by this."""
    try:
        running = [name for name in os.listdir("/proc") if name.isdigit()]
        mine = [name for name in running if os.stat(f"/proc/{name}").st_uid == os.getuid()]
        threads = sum(len(os.listdir(f"/proc/{name}/task")) for name in mine)
    except OSError:  # one has ended meanwhile, or the system has no /proc
        return
    confine.limit_processes(threads + processes)
