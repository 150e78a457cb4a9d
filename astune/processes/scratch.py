"""Temporary folder that is removed even if the process that made it was killed.

    /tmp/astune-tmp-<what>-XXXXXXXX/     locked (flock) by the process that made it, for as long as that lives

The next process of the same user that makes one removes those without a lock. Unlike process ids, locks also work
between containers that share a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

_PREFIX = "astune-tmp-"
_NEW_S = 60.0
"""Seconds in which a new folder may exist without its lock."""


class Scratch:
    """A new folder. `remove` is idempotent, and what code left there may not hinder it."""

    def __init__(self, what: str) -> None:
        _sweep_once()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{what}-"))
        self._lock = _locked(self.path)

    def remove(self) -> None:
        _remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(folder: Path) -> list[Path]:
    """Remove and return the temporary folders in `folder` whose process is gone."""
    return [path for path in folder.glob(f"{_PREFIX}*") if _is_left_over(path) and _remove(path)]


@cache
def _sweep_once() -> None:
    sweep(Path(tempfile.gettempdir()))


def _is_left_over(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    if found.st_uid != os.geteuid() or path.is_symlink() or time.time() < found.st_ctime + _NEW_S:
        return False
    lock = _locked(path)
    if lock is not None:
        os.close(lock)
    return lock is not None


def _locked(path: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where another one does."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None


def _remove(path: Path) -> bool:
    """Remove a folder and return whether it is gone. Model-written code may nest folders deeper than Python's own
    removal supports."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(path)], check=False)
    return not path.exists()
