"""Limits for reading runs made by others: regular files only, of sizes that real runs have."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import BinaryIO

import zstandard

INFO_BYTES = 2**20
METRICS_BYTES = 2**30
VOCABULARY_BYTES = 2**28
_PLAIN_BYTES = 2**25
"""Size that a decompressed record may always have; an episode of a million tokens has 26 MB."""
_RATIO = 100
"""Maximum compression ratio of a record; real runs have 3 to 30."""
_COLUMN_BYTES = 2**28
_STEPS_BETWEEN_LOOKS = 20_000
"""SQLite instructions between two checks of the clock: some milliseconds."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it; refuse one that never ends or waits for a writer, such as a pipe or a device.
    Raises OSError if it cannot be opened, or is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EINVAL, f"it is larger than {max_bytes:,} bytes", str(path))
    return data


def decompressed(packed: bytes) -> bytes:
    """Decompress a zstd frame, unless it is far larger than a real record could be.

    Raises:
        zstandard.ZstdError: it is damaged, too large, or does not declare its size.
    """
    size = zstandard.get_frame_parameters(packed).content_size
    if size > max(_PLAIN_BYTES, _RATIO * len(packed)):
        raise zstandard.ZstdError(f"{len(packed):,} bytes declare a decompressed size of {size:,} bytes")
    return zstandard.ZstdDecompressor().decompress(packed)


class QueryLimit:
    """Deadline for queries of a connection, which end with SQLite's error `interrupted`, and a limit on column sizes.

    A manipulated store can make a query run for ever, or return values of any size.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._deadline = float("inf")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _COLUMN_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.set_progress_handler(self.is_over, _STEPS_BETWEEN_LOOKS)

    def start(self, seconds: float) -> None:
        """Start the time limit, shared by all queries from now on."""
        self._deadline = time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline
