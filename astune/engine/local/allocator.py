"""A setting of the C library's allocator, for computing on a CPU under Linux; engine and trainer share it.

glibc gives large blocks back to the system as soon as they are freed, and a training step allocates and frees
gigabytes: a third of its time went into page faults, and two thirds of a decoding step that copies keys and values.
Kept, they cost memory up to the step's own peak, which the next step needs anyway. Where there is no glibc
nothing happens.
"""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Have freed blocks stay in the process, for all of its life.

    Blocks of other arenas than the first are given back whatever the threshold says, hence one arena for the
    threads that start from now on.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)  # or blocks above 32 MiB, the highest threshold, would go back each time
    mallopt(_M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Return what is free by now to the system, at the end of a phase that others follow with other sizes of blocks.

    Freed blocks of rollouts are too small for a training step's, and a training step's lie between what stays; kept
    for all of a run, both add up. Taking the pages again costs a tenth of a second for a gigabyte.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
