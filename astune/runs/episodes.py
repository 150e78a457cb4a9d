"""Reading recorded episodes: rows to list and filter by, and whole episodes one at a time.

The table, version 1 (`PRAGMA user_version`), in `rollout/episodes.sqlite`:

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
    seconds       how long the episode took
    created_at    Unix time of recording
    advantages    JSON list, one number for the episode or one for each trained message; null until known, a null in
                  it is NaN
    not_trained   why the episode was left out of training; null where it was not
    blob          the episode itself, see `astune/runs/wire.py`

Readers open the database read-only and never block its writer (WAL); they see what was acknowledged.
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
from typing import Self
from urllib.parse import quote

import orjson

from astune.runs.wire import unpack
from astune.schema import Episode, EpisodeStatus, RunStoreError, Split

SCHEMA_VERSION = 1
APPLICATION_ID = 0x41535452
BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What is known of an episode without unpacking it; the columns of the module's docstring."""

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
    seconds: float | None
    created_at: float
    advantages: list[float] | None
    not_trained: str | None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Averages over the episodes of one step and split; errors are counted and averaged nowhere."""

    split: Split
    step: int
    episodes: int
    errors: int
    tasks: int
    successes: int
    reward: float
    answer_tokens: float
    turns: float

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes if self.episodes else float("nan")


_COLUMNS = [field.name for field in fields(EpisodeRow)]
_BLOB = "SELECT blob FROM episodes WHERE episode_id = ?"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM episodes"


class EpisodeReader:
    """Read access to a store, usable from any thread and while another process writes it."""

    def __init__(self, path: Path) -> None:
        """Open the store at `path`.

        Raises:
            RunStoreError: there is none, it is damaged, or a newer version wrote it.
        """
        self.path = path
        self._lock = threading.Lock()
        if not path.is_file():
            raise RunStoreError(f"no episodes at {path}", hint="name the folder of a run that has started")
        with self._query_errors():
            self._connection = connect(path, read_only=True)
            check_version(self._connection, path)

    def read(self, episode_id: str) -> Episode:
        """The whole episode, exactly as it was recorded."""
        with self._query_errors(), self._lock:
            found = self._connection.execute(_BLOB, (column_text(episode_id),)).fetchone()
        if found is None:
            raise RunStoreError(f"no episode {episode_id!r} in {self.path}", hint="list() gives the recorded ones")
        return unpack(found[0])

    def row(self, episode_id: str) -> EpisodeRow:
        rows = self._rows(" WHERE episode_id = ?", [column_text(episode_id)])
        if not rows:
            raise RunStoreError(f"no episode {episode_id!r} in {self.path}", hint="list() gives the recorded ones")
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
        """Rows in the order of recording, filtered by what is given."""
        task = None if task_id is None else column_text(task_id)
        wanted = {"step": step, "split": split, "task_id": task, "status": status}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " WHERE " + " AND ".join(f"{column} = ?" for column in given) if given else ""
        return self._rows(f"{where} ORDER BY seq LIMIT ? OFFSET ?", [*given.values(), limit, offset])

    def episodes(self, *, step: int | None = None, split: Split | None = None) -> Iterator[Episode]:
        """Whole episodes in the order of recording, one in memory at a time."""
        for row in self.list(step=step, split=split):
            yield self.read(row.episode_id)

    def count(self) -> int:
        with self._query_errors(), self._lock:
            return self._connection.execute("SELECT COUNT(*) FROM episodes").fetchone()[0]

    def summaries(self, split: Split | None = None) -> list[StepSummary]:
        """One summary a step and split, by step. Attempts that were run again are no episodes of their own."""
        query = """
            SELECT split, step, SUM(status != 'error'), SUM(status = 'error'), COUNT(DISTINCT task_id),
                   COALESCE(SUM(success), 0), AVG(reward),
                   AVG(n_sampled) FILTER (WHERE status != 'error'),
                   AVG(n_turns) FILTER (WHERE status != 'error')
            FROM episodes WHERE ?1 IS NULL OR split = ?1 GROUP BY split, step ORDER BY step, split"""
        with self._query_errors(), self._lock:
            found = self._connection.execute(query, (split,)).fetchall()
        return [
            StepSummary(*row[:6], *(float("nan") if value is None else float(value) for value in row[6:]))
            for row in found
        ]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, tail: str, values: Sequence[object]) -> list[EpisodeRow]:
        with self._query_errors(), self._lock:
            found = self._connection.execute(_SELECT + tail, values).fetchall()
        return [_row(values) for values in found]

    @contextmanager
    def _query_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as cause:
            raise RunStoreError(
                f"the episodes at {self.path} cannot be read: {cause}", hint="the file is damaged, or no store of ours"
            ) from cause


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time; transactions begin and end where we say so."""
    mode = "ro" if read_only else "rwc"
    return sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not ours, or newer than we are."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise RunStoreError(f"{path} is a database, but no store of episodes")
    if version != SCHEMA_VERSION:
        raise RunStoreError(
            f"{path} has schema version {version}, this version of astune reads {SCHEMA_VERSION}",
            hint="upgrade astune, or read the run with the version that wrote it",
        )


def column_text(text: str) -> str:
    """Text as a column holds it: SQLite takes no lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _row(values: tuple[object, ...]) -> EpisodeRow:
    named = dict(zip(_COLUMNS, values, strict=True))
    advantages, success = named["advantages"], named["success"]
    if isinstance(advantages, str):
        named["advantages"] = [math.nan if value is None else value for value in orjson.loads(advantages)]
    named["success"] = None if success is None else bool(success)
    return EpisodeRow(**named)  # type: ignore[arg-type]  # the columns are the fields, in order
