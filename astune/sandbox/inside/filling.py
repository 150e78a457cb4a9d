"""Size of a folder that untrusted code fills, if no separate file system limits it."""

from __future__ import annotations

import os
import stat
import time

MOST_FILES = 16384
"""Files and folders in a scratch folder: empty ones cost memory too."""
_DEEPEST = 64
"""Folders within folders; more would need more descriptors than there are."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARE = 10.0
"""A look may take a tenth of the time, but for one that takes long: it may have waited for a processor."""
_MOST_S = 1.0
"""Seconds between two looks."""


class Quota:
    """Quota that checks a folder from time to time, less often the more it holds.

    Args:
        most_bytes: limit of all files together, on the disk.
        process: process whose unlinked open files count as well; 0 for none.
    """

    def __init__(self, folder: str, most_bytes: int, process: int = 0) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._process = process
        self._next = 0.0

    def is_exceeded(self) -> bool:
        """Return whether the folder was over its limit at the last check."""
        began = time.monotonic()
        if began < self._next:
            return False
        left = self._most_bytes - (unlinked_bytes(self._process, self._folder) if self._process else 0)
        exceeded = left < 0 or holds_more(self._folder, left, MOST_FILES)
        ended = time.monotonic()
        self._next = ended + min(_MOST_S, _SHARE * (ended - began))
        return exceeded


def holds_more(folder: str, most_bytes: int, most_files: int) -> bool:
    """Return whether a folder holds more bytes or files than these, or folders deeper than 64. Raises nothing."""
    left = [most_bytes, most_files]
    try:
        return _exceeds(os.open(folder, _OPEN), left, _DEEPEST)
    except OSError:  # it has gone
        return False


def unlinked_bytes(process: int, folder: str) -> int:
    """Return the bytes of the folder's unlinked files: open ones, and those that are only mapped."""
    held: dict[int, int] = {}
    for descriptor in _names(f"/proc/{process}/fd"):
        try:
            found = os.stat(f"/proc/{process}/fd/{descriptor}")
        except OSError:  # it was closed
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            held[found.st_ino] = found.st_blocks * 512
    for line in _lines(f"/proc/{process}/maps"):
        where, _, offset, _, inode, *path = line.split(None, 5)
        if path and path[0].startswith(folder) and path[0].endswith(" (deleted)"):
            start, end = (int(bound, 16) for bound in where.split("-"))
            held.setdefault(int(inode), 0)
            held[int(inode)] = max(held[int(inode)], int(offset, 16) + end - start)
    return sum(held.values())


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _lines(file: str) -> list[str]:
    try:
        with open(file, errors="replace") as opened:
            return opened.read().splitlines()
    except OSError:
        return []


def _exceeds(folder: int, left: list[int], levels: int) -> bool:
    """Subtract what lies in the folder, which is closed, from `left`."""
    try:
        for name in os.listdir(folder):
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                inside = os.open(name, _OPEN, dir_fd=folder) if stat.S_ISDIR(found.st_mode) else None
            except PermissionError:  # content cannot be counted without permission
                return True
            except OSError:  # it has gone
                continue
            left[0] -= found.st_blocks * 512
            left[1] -= 1
            if inside is not None and levels == 0:
                os.close(inside)
                return True
            if (inside is not None and _exceeds(inside, left, levels - 1)) or min(left) < 0:
                return True
    finally:
        os.close(folder)
    return False
