"""Descendants of a process, and their memory, according to /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator


def open_proc() -> int:
    """A descriptor of the machine's /proc, which stays usable where the path leads nowhere any more."""
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY)


def resident_bytes(proc: int, process: str) -> int:
    """Memory of all processes below `process`, a number or `self`; pages that several share count for each."""
    return sum(_own_bytes(proc, each) for each in _below(proc, process))


def below(process: int) -> list[str]:
    """Return all descendants of a process."""
    proc = open_proc()
    try:
        return list(_below(proc, str(process)))
    finally:
        os.close(proc)


def _below(proc: int, process: str) -> Iterator[str]:
    for thread in _names(proc, f"{process}/task"):
        for child in _read(proc, f"{process}/task/{thread}/children").split():
            yield child
            yield from _below(proc, child)


def _own_bytes(proc: int, process: str) -> int:
    """Return the memory not backed by the machine's files: private, and of files in the scratch folder. There is no
    other: the system call filter refuses shared memory without a file."""
    lines = [line.split() for line in _read(proc, f"{process}/status").splitlines()]
    return sum(int(words[1]) << 10 for words in lines if words[0] in ("RssAnon:", "RssShmem:"))


def _names(proc: int, path: str) -> list[str]:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:  # it has ended
        return []
    try:
        return os.listdir(folder)
    except OSError:
        return []
    finally:
        os.close(folder)


def _read(proc: int, path: str) -> str:
    try:
        file = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return ""
    try:
        return os.read(file, 1 << 16).decode()
    except OSError:
        return ""
    finally:
        os.close(file)
