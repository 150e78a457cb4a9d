"""Taking a secret out of the environment, so that no child inherits it and no other process reads it in /proc."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_STARTS, _ENDS = 49, 50
"""Positions in /proc/PID/stat, counted from 0, of the addresses between which the first environment lies (proc(5))."""


def take_variable(name: str) -> str | None:
    """Return an environment variable's value, and remove it; None where it is not set or is empty.

    The kernel shows a process's first environment in /proc/PID/environ for as long as the process lives, whatever was
    unset since. The value is therefore overwritten where it lies.
    """
    value = os.environ.pop(name, None)
    stat = Path("/proc/self/stat")
    if value and stat.exists():  # not so on macOS
        # The command's name, in parentheses, may hold blanks.
        fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        starts, ends = (int(fields[position - 2]) for position in (_STARTS, _ENDS))
        at = (b"\0" + ctypes.string_at(starts, ends - starts)).find(b"\0" + f"{name}=".encode())
        if at >= 0:
            ctypes.memset(starts + at + len(name) + 1, ord("x"), len(os.fsencode(value)))
    return value or None
