"""Single-writer lock of a run, released by the operating system when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import psutil

from astune.runs._files import store_errors
from astune.runs._limits import open_regular
from astune.schema import RunStoreError

_PATIENCE_S = 1.0
"""Seconds to wait for the lock while the file names a living process."""
_FOR_READERS_S = 10.0
"""Seconds to wait for it otherwise: a reader that looks for its holder takes it for a moment."""


class RunLock:
    """Advisory lock on a file that also contains its holder's process id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock, or report its holder. Raises RunStoreError if another process, or another part of this one, is
        writing this run."""
        with store_errors(f"locking {self._path}"):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock_soon(descriptor):
            holder = _named_in(descriptor) or "unknown"
            os.close(descriptor)
            raise RunStoreError(
                f"the run {self._path.parent} is being written by process {holder}",
                hint="wait until it ends or stop it, or start a new run; two processes cannot write one run",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. Idempotent; the file stays, since removing it would let two processes lock two different
        files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    @staticmethod
    def holder(path: Path) -> int | None:
        """Return the process id that holds the lock now; None if it is free."""
        try:
            file = open_regular(path)
        except OSError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = _named_in(file.fileno())
                return int(text) if text.isdecimal() else -1
        return None


def _lock_soon(descriptor: int) -> bool:
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            named = _named_in(descriptor)
            is_written = named.isdecimal() and int(named) < 1 << 31 and psutil.pid_exists(int(named))
            if time.monotonic() - began > (_PATIENCE_S if is_written else _FOR_READERS_S):
                return False
            time.sleep(0.02)
        else:
            return True


def _named_in(descriptor: int) -> str:
    """Return the process id in the file."""
    return os.pread(descriptor, 64, 0).decode(errors="replace").strip()
