"""Reader of recorded episodes: rows to list and filter, and whole episodes one at a time.

The table `episodes`, version 2 (`PRAGMA user_version`), in `rollout/episodes.sqlite`:

    seq           order of recording
    episode_id    unique; `<split>-<step>-<task>-<repeat>-<attempt>`
    split, step, task_id, repeat, attempt
    status        success | failed | truncated | error
    reward        the judge's number, null for an error (and `success` 0 or 1, null likewise)
    error_type, error_text
    n_tokens      tokens of all messages, each once
    n_sampled     tokens that the model wrote
    n_trained     sampled tokens that carry loss if the episode is trained
    n_turns       messages that the model wrote
    n_branches    paths from a root to a leaf on which the model wrote; 1 where nothing branched
    agents        JSON list of the agents that called the model
    seconds       how long the episode took
    created_at    Unix time of recording
    advantages    JSON list, one number for the episode or one for each trained message; null until known, a null in
                  it is NaN
    not_trained   why the episode was excluded from training; null if it was not
    blob          the episode itself, see `astune/runs/wire.py`

Beside it lie, for each `seq`,

    texts             `folded`: the text of all messages without case, zstd-compressed UTF-8, for searching
    trainer_logprobs  `logprobs`: the trainer's own log-probability of each sampled token under the weights that the
                      step began with, zstd-compressed little-endian float32, node after node in the order of
                      recording; NaN where it computed none. Only of episodes that were trained

A store of version 1 is read with nulls in the columns that it lacks; a search in it unpacks every episode.

Readers open the database read-only and never block its writer (WAL); they see committed data. A store without a writer
is read without creating files beside it, even in a read-only folder.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from astune.runs._limits import decompressed
from astune.runs._schema import (
    column_text,
    connect_to_read,
    let_old_read_as_new,
    primary_code,
    stamps_of,
    version_of,
)
from astune.runs.episode_filter import AS_RECORDED, EVERY_EPISODE, EpisodeFilter, EpisodeOrder
from astune.runs.summaries import SUMMARIES, StepSummary, summary_of
from astune.runs.texts import folded, forest_text
from astune.runs.wire import main_query, unpack
from astune.schema import Episode, EpisodeStatus, RunStoreError, Split

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""SQLite's errors that mean damage; others may be temporary: a lock, a full disk, missing memory."""
_QUERY_S = 20.0
"""Time limit of a query in seconds; a query of a real store takes milliseconds."""
_SEARCHED_AT_ONCE = 256
"""Episodes whose texts are read per batch; no query is open while they are searched."""


class DamagedStoreError(RunStoreError):
    """The store's file, or a part of it, cannot be read as a database."""


class NoEpisodeError(RunStoreError):
    """The store has no episode with this id."""

    def __init__(self, episode_id: str, path: Path) -> None:
        super().__init__(f"no episode {episode_id!r} in {path}", hint="list() returns the recorded ones")
        self.episode_id = episode_id


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """Summary of an episode that needs no unpacking; see the module's docstring for the columns."""

    seq: int
    episode_id: str
    split: Split
    step: int
    task_id: str
    repeat: int
    attempt: int
    status: EpisodeStatus
    reward: float | None
    success: bool | None
    error_type: str | None
    error_text: str | None
    n_tokens: int
    n_sampled: int
    n_trained: int
    n_turns: int
    n_branches: int | None
    agents: list[str] | None
    seconds: float | None
    created_at: float
    advantages: list[float] | None
    not_trained: str | None

    @property
    def untrained(self) -> str | None:
        """Return why nothing of the episode was trained; None if it was. A step writes advantages at its end."""
        if self.split == "validation":
            return "held out"
        if self.status == "error":
            return "the attempt failed"
        return "step not finished" if self.not_trained is None and self.advantages is None else self.not_trained


@dataclass(frozen=True, slots=True)
class ErrorCount:
    split: Split
    step: int
    error_type: str
    count: int


_COLUMNS = [field.name for field in fields(EpisodeRow)]
_BLOB = "SELECT blob FROM episodes WHERE episode_id = ?"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM episodes"
_TEXTS = "SELECT seq, folded FROM texts WHERE seq > ? ORDER BY seq LIMIT ?"
_TEXTS_OF_1 = "SELECT seq, blob FROM episodes WHERE seq > ? ORDER BY seq LIMIT ?"
_TRAINER_LOGPROBS = """
    SELECT logprobs FROM trainer_logprobs WHERE seq = (SELECT seq FROM episodes WHERE episode_id = ?)"""


class EpisodeReader:
    """Read access to a store, usable from any thread and while another process writes it."""

    def __init__(self, path: Path) -> None:
        """Open the store at `path`. Raises RunStoreError if it does not exist, is damaged, or was written by a newer
        version."""
        self.path = path
        self._lock = threading.Lock()
        if not path.is_file():
            raise RunStoreError(f"no episodes at {path}", hint="give the folder of a run that has started")
        self._opened = 0
        with self._query_errors():
            self._open()

    def read(self, episode_id: str) -> Episode:
        """Return the whole episode, exactly as it was recorded."""
        return unpack(self._blob(episode_id))

    def main_query(self, episode_id: str) -> str:
        """Return the task's query, much faster than `read`; empty if the task has messages instead."""
        return main_query(self._blob(episode_id))

    def row(self, episode_id: str) -> EpisodeRow:
        rows = self._rows(" WHERE episode_id = ?", [column_text(episode_id)])
        if not rows:
            raise NoEpisodeError(episode_id, self.path)
        return rows[0]

    def list(
        self,
        *,
        step: int | None = None,
        split: Split | None = None,
        task_id: str | None = None,
        status: EpisodeStatus | None = None,
        limit: int = -1,
        offset: int = 0,
    ) -> list[EpisodeRow]:
        """Return rows in order of recording, filtered by the arguments."""
        task = None if task_id is None else column_text(task_id)
        wanted = EpisodeFilter(step=step, split=split, task_id=task, status=status)
        return self.find(wanted, limit=limit, offset=offset)

    def find(
        self, wanted: EpisodeFilter, order: EpisodeOrder = AS_RECORDED, *, limit: int = -1, offset: int = 0
    ) -> list[EpisodeRow]:
        """Return the rows that match a filter, in a given order."""
        where, values = wanted.where()
        tail = f" WHERE {where} ORDER BY {order.clause()} LIMIT ? OFFSET ?"
        return self._rows(tail, [*values, limit, offset])

    def select(self, what: str, wanted: EpisodeFilter, tail: str = "", *, join: str = "") -> list[tuple[Any, ...]]:
        """Select columns or aggregates of the episodes that are wanted."""
        where, values = wanted.where()
        with self._asking() as connection:
            return connection.execute(f"SELECT {what} FROM episodes {join} WHERE {where} {tail}", values).fetchall()

    def search(self, text: str, *, after: int = 0) -> Iterator[int]:
        """`seq` of every episode recorded after `after` whose messages hold the text, whatever its case."""
        sought = folded(text)
        while batch := self._texts(after):
            for seq, packed in batch:
                if sought in self._text_of(packed):
                    yield seq
            if batch[-1][0] <= after:
                raise DamagedStoreError(f"the episodes at {self.path} cannot be read: they are out of order")
            after = batch[-1][0]

    def trainer_logprobs(self, episode_id: str) -> NDArray[np.float32] | None:
        """Return the trainer's log-probabilities [n_sampled]; None if not recorded."""
        if self._version == 1:
            return None
        with self._asking() as connection:
            found = connection.execute(_TRAINER_LOGPROBS, (column_text(episode_id),)).fetchone()
        return None if found is None else np.frombuffer(self._decompressed(found[0]), dtype="<f4")

    def episodes(self, *, step: int | None = None, split: Split | None = None) -> Iterator[Episode]:
        """Yield whole episodes in order of recording, one in memory at a time."""
        for row in self.list(step=step, split=split):
            yield self.read(row.episode_id)

    def count(self, wanted: EpisodeFilter = EVERY_EPISODE) -> int:
        where, values = wanted.where()
        with self._asking() as connection:
            return connection.execute(f"SELECT COUNT(*) FROM episodes WHERE {where}", values).fetchone()[0]

    def last(self) -> tuple[int, float] | None:
        """Return `created_at` of an episode; None if there is none."""
        query = "SELECT seq, created_at FROM episodes ORDER BY seq DESC LIMIT 1"
        with self._asking() as connection:
            return connection.execute(query).fetchone()

    def recorded_at(self, seq: int) -> float | None:
        """Return the Unix time at which an episode was recorded; None where there is none of that number."""
        with self._asking() as connection:
            found = connection.execute("SELECT created_at FROM episodes WHERE seq = ?", (seq,)).fetchone()
        return found[0] if found is not None else None

    def data_version(self) -> int:
        """Return a number that changes with every commit of a writer."""
        with self._asking() as connection:
            return self._opened << 32 | connection.execute("PRAGMA data_version").fetchone()[0]

    def agents(self) -> list[str]:
        """Return the agents that called the model in any episode, by name."""
        query = "SELECT DISTINCT value FROM episodes, json_each(agents) ORDER BY value"
        with self._asking() as connection:
            return [name for (name,) in connection.execute(query)]

    def summaries(self, split: Split | None = None) -> list[StepSummary]:
        """Return one summary per step and split, by step. Attempts that were run again are no episodes of their own."""
        with self._asking() as connection:
            found = connection.execute(SUMMARIES, (split,)).fetchall()
        return [summary_of(*row) for row in found]

    def n_tasks(self, split: Split, *, until: int) -> int:
        """Return the number of different tasks of a split, up to a step."""
        with self._asking() as connection:
            return connection.execute(
                "SELECT COUNT(DISTINCT task_id) FROM episodes WHERE split = ? AND step <= ?", (split, until)
            ).fetchone()[0]

    def errors(self) -> list[ErrorCount]:
        """Count failed episodes by error type, step and split."""
        query = """
            SELECT split, step, COALESCE(error_type, 'error'), COUNT(*)
            FROM episodes WHERE status = 'error' GROUP BY 1, 2, 3 ORDER BY step, split, 3"""
        with self._asking() as connection:
            return [ErrorCount(*row) for row in connection.execute(query)]

    def text(self, episode_id: str) -> str:
        """Return the text that a search examines, with its original case."""
        return forest_text(self.read(episode_id).forest)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, tail: str, values: Sequence[object]) -> list[EpisodeRow]:
        with self._asking() as connection:
            found = connection.execute(_SELECT + tail, values).fetchall()
        return [_row(values) for values in found]

    def _blob(self, episode_id: str) -> bytes:
        with self._asking() as connection:
            found = connection.execute(_BLOB, (column_text(episode_id),)).fetchone()
        if found is None:
            raise NoEpisodeError(episode_id, self.path)
        return found[0]

    def _texts(self, after: int) -> list[tuple[int, bytes]]:
        query = _TEXTS if self._version > 1 else _TEXTS_OF_1
        with self._asking() as connection:
            return connection.execute(query, (after, _SEARCHED_AT_ONCE)).fetchall()

    def _text_of(self, packed: bytes) -> bytes:
        return self._decompressed(packed) if self._version > 1 else folded(forest_text(unpack(packed).forest))

    def _decompressed(self, packed: bytes) -> bytes:
        try:
            return decompressed(packed)
        except zstandard.ZstdError as cause:
            raise DamagedStoreError(f"the episodes at {self.path} cannot be read: {cause}") from cause

    def _open(self) -> None:
        stamps = stamps_of(self.path)
        connection, never_changes, limit = connect_to_read(self.path)
        limit.start(_QUERY_S)
        try:
            version = version_of(connection, self.path)
            if version == 1:
                let_old_read_as_new(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._version, self._opened = connection, version, self._opened + 1
        self._limit = limit
        self._stamps = stamps if never_changes else None

    @contextmanager
    def _asking(self) -> Iterator[sqlite3.Connection]:
        """Provide the connection to one thread at a time."""
        with self._query_errors(), self._lock:
            if self._stamps is not None and stamps_of(self.path) != self._stamps:
                old = self._connection
                self._open()
                old.close()
            self._limit.start(_QUERY_S)
            yield self._connection

    @contextmanager
    def _query_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as cause:
            problem = f"the episodes at {self.path} cannot be read: {cause}"
            if primary_code(cause) in _DAMAGE:
                raise DamagedStoreError(problem, hint="the file is damaged, or not an episode store") from cause
            if primary_code(cause) == sqlite3.SQLITE_INTERRUPT:
                problem = f"{problem} after {_QUERY_S:g} s"
            raise RunStoreError(
                problem, hint=("try again; then check the disk and which other process uses the file")
            ) from cause


def _row(values: tuple[object, ...]) -> EpisodeRow:
    named = dict(zip(_COLUMNS, values, strict=True))
    advantages, success = named["advantages"], named["success"]
    if isinstance(advantages, str):
        named["advantages"] = [math.nan if value is None else value for value in orjson.loads(advantages)]
    named["success"] = None if success is None else bool(success)
    if isinstance(named["agents"], str):
        named["agents"] = orjson.loads(named["agents"])
    return EpisodeRow(**named)  # type: ignore[arg-type]  # the columns are the fields, in order
