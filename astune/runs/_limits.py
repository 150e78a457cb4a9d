"""What reading a run may cost that somebody else may have made: regular files only, of sizes that real runs have."""

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
"""A compressed record may always hold this much; an episode of a million tokens has 26 MB."""
_RATIO = 100
"""How many times larger than its compressed form a record may be; those of real runs are 3 to 30 times larger."""
_COLUMN_BYTES = 2**28
_STEPS_BETWEEN_LOOKS = 20_000
"""Instructions of SQLite between two looks at the clock: some milliseconds."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it, but nothing that never ends or that waits for a writer, such as a pipe or a device.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EINVAL, f"it is larger than {max_bytes:,} bytes", str(path))
    return data


def decompressed(packed: bytes) -> bytes:
    """What a zstd frame holds, unless it is far larger than what compression makes of a real record.

    Raises:
        zstandard.ZstdError: it is damaged, too large, or does not say how large it is.
    """
    size = zstandard.get_frame_parameters(packed).content_size
    if size > max(_PLAIN_BYTES, _RATIO * len(packed)):
        raise zstandard.ZstdError(f"{len(packed):,} bytes say that they are {size:,} bytes compressed")
    return zstandard.ZstdDecompressor().decompress(packed)


class QueryLimit:
    """Ends a query of a connection at a deadline, with SQLite's error `interrupted`, and bounds what a column holds.

    A doctored store can have a query walk for ever, or make values of any size.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._deadline = float("inf")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _COLUMN_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.set_progress_handler(self.is_over, _STEPS_BETWEEN_LOOKS)

    def start(self, seconds: float) -> None:
        """Give what is asked from now on this long, together."""
        self._deadline = time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline
