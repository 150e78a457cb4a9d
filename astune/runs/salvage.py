"""Recovery of a damaged store: readable rows are copied into a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zstandard

from astune.runs._limits import decompressed
from astune.runs._schema import COPIED, RowCopy, connect, connect_to_read, create, require_tables
from astune.schema import RunStoreError

_SALVAGED_WITHIN_S = 60.0
"""Time limit in seconds; a store of 1 GB takes a third of this. Rows not copied by then are missing in the viewer, not
in the file."""
_ROW_BYTES = 64
"""Minimum bytes of an episode in a store, which bounds how many there can be."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """Number of episodes that could be read, and that could not, up to the last known one."""

    kept: int
    lost: int


def salvage(damaged: Path, into: Path) -> Salvage:
    """Copy readable rows into a new store at `into`; the damaged file is not changed.

    Rows are queried one by one by `seq`, since an unreadable page ends a scan of the table. The trainer's
    log-probabilities are copied if readable; other annotations are derived from the episode again.
    """
    create(into)
    (source, _, limit), target = connect_to_read(damaged), connect(into)
    limit.start(_SALVAGED_WITHIN_S)
    try:
        source.execute("PRAGMA writable_schema = ON")  # or a file that was cut off is refused as a whole
        with suppress(sqlite3.Error):
            require_tables(source, damaged)
        target.execute("BEGIN")
        copy, kept, n_bytes = RowCopy(target), 0, damaged.stat().st_size
        last = min(_last_seq(source), n_bytes // _ROW_BYTES)
        for seq in range(1, last + 1):
            if limit.is_over() or n_bytes < 0:  # otherwise rows share their pages, and the copy grows without end
                break
            with suppress(sqlite3.Error, RunStoreError):
                row = source.execute(f"SELECT {COPIED} FROM episodes NOT INDEXED WHERE seq = ?", (seq,)).fetchone()
                if row is not None:
                    n_bytes -= len(row[-1])
                    copy.add(row)
                    kept += 1
                    _copy_logprobs(source, target, seq)
        target.execute("COMMIT")
    finally:
        source.close()
        target.close()
    return Salvage(kept, last - kept)


def _last_seq(source: sqlite3.Connection) -> int:
    """Return the highest `seq` found from either end; they have no gaps."""
    found = 0
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            rows: Iterator[tuple[int]] = source.execute(f"SELECT seq FROM episodes NOT INDEXED ORDER BY seq {order}")
            for (seq,) in rows:
                found = max(found, seq)
    return found


def _copy_logprobs(source: sqlite3.Connection, target: sqlite3.Connection, seq: int) -> None:
    with suppress(sqlite3.Error, zstandard.ZstdError):
        row = source.execute("SELECT seq, logprobs FROM trainer_logprobs WHERE seq = ?", (seq,)).fetchone()
        if row is not None:
            decompressed(row[1])
            target.execute("INSERT INTO trainer_logprobs VALUES (?, ?)", row)
