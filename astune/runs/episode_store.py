"""Episode writer with cheap appends and a durable flush.

`append` takes a snapshot and queues it; one background thread packs and commits the queue in one transaction. When that
thread fails (a full disk, a defect) every later call raises, and what was committed before stays readable. The formats
are documented in `episodes.py` and `wire.py`.
"""

from __future__ import annotations

import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from astune.runs._files import FREE_SOME, fsync_folder, is_disk_full, require_still_there, store_errors
from astune.runs._schema import (
    COLUMNS,
    TEXT_LEVEL,
    agents_of,
    column_text,
    connect,
    create,
    migrate,
    version_of,
)
from astune.runs.episodes import EpisodeReader
from astune.runs.texts import folded, joined
from astune.runs.wire import pack, snapshot
from astune.schema import Episode, RunStoreError, TrainingBatch

QUEUE_EPISODES = 256
"""Maximum queued episodes; a step has about 64. Above it `append` waits for the disk."""
STALL_TIMEOUT_S = 120.0
"""Seconds without any progress of the disk after which the run ends with an error."""
NOTHING: Mapping[str, int] = MappingProxyType({})
_EPISODES_PER_COMMIT = 64
_ZSTD_LEVEL = 3

_INSERT = f"INSERT INTO episodes ({', '.join(COLUMNS[1:])}) VALUES ({', '.join('?' * (len(COLUMNS) - 1))})"
_INSERT_TEXT = "INSERT INTO texts VALUES (last_insert_rowid(), ?)"
_INSERT_LOGPROBS = "INSERT OR REPLACE INTO trainer_logprobs SELECT seq, ?1 FROM episodes WHERE episode_id = ?2"
_AFTER = """(step > ?1 OR (step = ?1 AND split = 'validation' AND NOT ?2))
    AND episode_id NOT IN (SELECT value FROM json_each(?3))"""
_FORGET = "UPDATE episodes SET advantages = NULL, not_trained = NULL, n_trained = ? WHERE episode_id = ?"
_FORGET_LOGPROBS = "DELETE FROM trainer_logprobs WHERE seq = (SELECT seq FROM episodes WHERE episode_id = ?)"
_ANNOTATE = (
    "UPDATE episodes SET advantages = ?, not_trained = ?, n_trained = coalesce(?, n_trained) WHERE episode_id = ?"
)
_ERROR_TYPE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(?::|\(|$)")


_Statement = tuple[str, Sequence[object]]


class _Packing:
    """Compression settings of the writer's thread, which has its own compressors."""

    def __init__(self) -> None:
        self.records = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        self.texts = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=True)


@dataclass(slots=True)
class _Write:
    """Queued statements; `make` runs in the writer's thread and returns them with their values."""

    make: Callable[[_Packing], list[_Statement]]


class EpisodeStore(EpisodeReader):
    """A reader that also writes. One process at a time, as the lock of `RunDirectory` ensures."""

    def __init__(self, path: Path) -> None:
        """Open the store at `path`, or create it. Raises RunStoreError if the folder cannot be written, or the file is
        not a store of this version."""
        with store_errors(f"opening {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._writer_connection = _open_for_writing(path)
        self._file_opened = path.stat()
        super().__init__(path)
        self._queue: queue.Queue[_Write | None] = queue.Queue(QUEUE_EPISODES)
        self._write_lock = threading.Lock()
        self._progress = threading.Condition()
        self._queued = 0
        self._committed = 0
        self._failure: Exception | None = None
        self._failure_reported = False
        self._closed = False
        self._writer = threading.Thread(target=self._write_all, name="episode-store", daemon=True)
        self._writer.start()

    def append(
        self, episode: Episode, advantages: Sequence[float] | None = None, *, not_trained: str | None = None
    ) -> None:
        """Queue an episode for writing; it is on disk once `flush` has returned. Raises RunStoreError if an earlier
        write failed, or the disk makes no progress."""
        data = snapshot(episode)
        created_at = time.time()
        columns = _columns(episode)
        annotation = _annotation(advantages, not_trained)

        def statements(packing: _Packing) -> list[_Statement]:
            values = (*columns, created_at, *annotation, pack(data, packing.records))
            return [(_INSERT, values), (_INSERT_TEXT, (packing.texts.compress(_folded_text(data)),))]

        self._put(_Write(statements))

    def annotate(
        self,
        episode_id: str,
        *,
        advantages: Sequence[float] | None = None,
        not_trained: str | None = None,
        n_trained: int | None = None,
    ) -> None:
        """Store results of a recorded episode that became known later; its record itself never changes.

        Args:
            n_trained: its tokens that carry loss, if `trainer.samples` excluded some.
        """
        values = (*_annotation(advantages, not_trained), n_trained, column_text(episode_id))
        self._put(_Write(lambda _: [(_ANNOTATE, values)]))

    def annotate_logprobs(self, episode_id: str, trainer_logprobs: NDArray[np.float32]) -> None:
        """Store the trainer's log-probabilities of an episode's sampled tokens: [n_sampled], NaN for unknown."""
        data = trainer_logprobs.astype("<f4").tobytes()
        name = column_text(episode_id)
        self._put(_Write(lambda packing: [(_INSERT_LOGPROBS, (packing.records.compress(data), name))]))

    def annotate_batch(self, batch: TrainingBatch) -> None:
        """Store each episode's advantage, or why its group was excluded from training."""
        for group, advantages in zip(batch.groups, batch.advantages, strict=True):
            for episode, advantage in zip(group.episodes, advantages, strict=True):
                numbers = list(advantage.values()) if isinstance(advantage, dict) else [advantage]
                n_trained = episode.n_trained if episode.left_out else None
                self.annotate(episode.episode_id, advantages=numbers, not_trained=group.dropped, n_trained=n_trained)

    def flush(self) -> None:
        """Return once everything appended so far is on disk. Raises RunStoreError if it could not be written, and what
        was flushed before is untouched; or if the file was removed."""
        with self._progress:
            target, last = self._queued, (self._committed, time.monotonic())
            while self._committed < target:
                self._raise_failure()
                self._progress.wait(0.2)
                if self._committed != last[0]:
                    last = (self._committed, time.monotonic())
                self._check_stall(last[1])
            self._raise_failure()
        require_still_there(self.path, self._file_opened)

    def rewind(self, step: int, *, measured: bool = True, keep: Mapping[str, int] = NOTHING) -> int:
        """Drop the episodes of steps after `step`, as if they had never run; returns how many.

        Without `measured`, the validation measurement of `step` itself is dropped as well.

        Args:
            keep: episodes that stay, by id, with their tokens that carry loss; what a step wrote beside them is
                forgotten.
        """
        self.flush()
        with self._query_errors(), self._write_lock, _transaction(self._writer_connection) as connection:
            dropped = connection.execute(f"DELETE FROM episodes WHERE {_AFTER}", (step, measured, _ids(keep)))
            for episode_id, n_trained in keep.items():
                connection.execute(_FORGET, (n_trained, column_text(episode_id)))
                connection.execute(_FORGET_LOGPROBS, (column_text(episode_id),))
            return dropped.rowcount

    def steps_after(self, step: int, *, measured: bool = True, keep: Collection[str] = ()) -> list[int]:
        """Return the steps of the episodes that `rewind` would drop, one for each episode."""
        self.flush()
        query, values = f"SELECT step FROM episodes WHERE {_AFTER}", (step, measured, _ids(keep))
        with self._query_errors(), self._write_lock:
            return [number for (number,) in self._writer_connection.execute(query, values)]

    def copy_after(self, step: int, to: Path, *, measured: bool = True, keep: Collection[str] = ()) -> None:
        """Copy the episodes that `rewind` would drop into a new store, with all of their annotations."""
        self.flush()
        create(to)
        connection = self._writer_connection
        with self._query_errors(), self._write_lock:
            connection.execute("ATTACH DATABASE ? AS copy", (str(to.resolve()),))
            try:
                for table in ("episodes", "texts", "trainer_logprobs"):
                    seqs = f"SELECT seq FROM main.episodes WHERE {_AFTER}"
                    connection.execute(
                        f"INSERT INTO copy.{table} SELECT * FROM main.{table} WHERE seq IN ({seqs})",
                        (step, measured, _ids(keep)),
                    )
            finally:
                connection.execute("DETACH DATABASE copy")

    def close(self) -> None:
        """Flush and stop. Idempotent. Raises RunStoreError if something appended could not be written, and no earlier
        call reported it."""
        if self._closed:
            return
        try:
            if not self._failure_reported:
                self.flush()
        finally:
            self._closed = True
            if self._writer.is_alive():
                self._queue.put(None)
                self._writer.join(STALL_TIMEOUT_S)
            super().close()
            self._writer_connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store, without hiding an exception that is already propagating."""
        try:
            self.close()
        except RunStoreError:
            if cause is None:
                raise

    def _put(self, write: _Write) -> None:
        if self._closed:
            raise RunStoreError(f"the episode store {self.path} is closed")
        self._raise_failure()
        started = time.monotonic()
        while True:
            try:
                self._queue.put(write, timeout=0.2)
                break
            except queue.Full:
                self._raise_failure()
                self._check_stall(started)
        with self._progress:
            self._queued += 1

    def _check_stall(self, since: float) -> None:
        if time.monotonic() - since > STALL_TIMEOUT_S:
            raise RunStoreError(
                f"writing episodes to {self.path} made no progress for {STALL_TIMEOUT_S:g} s",
                hint="check the disk, then continue with --resume",
            )

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is None:
            if self._writer.is_alive():
                return
            failure = RuntimeError("its thread ended")
        self._failure_reported = True
        if isinstance(failure, sqlite3.IntegrityError):
            raise RunStoreError(
                f"an episode was recorded twice in {self.path}: {failure}",
                hint="rewind the run before repeating a step",
            ) from failure
        full = "full" in str(failure) or is_disk_full(failure, self.path.parent)
        reason = "the disk is full" if full else f"{type(failure).__name__}: {failure}"
        raise RunStoreError(
            f"episodes cannot be written to {self.path}: {reason}",
            hint=FREE_SOME if full else "earlier records are intact; continue with --resume",
        ) from failure

    def _write_all(self) -> None:
        """Loop of the writer's thread: take the queue, commit it, notify waiters."""
        packing = _Packing()
        stopping = False
        try:
            while not stopping:
                gathered = [self._queue.get()]
                while len(gathered) < _EPISODES_PER_COMMIT and not self._queue.empty():
                    gathered.append(self._queue.get())
                writes = [write for write in gathered if write is not None]
                stopping = len(writes) < len(gathered)
                if writes:
                    statements = [statement for write in writes for statement in write.make(packing)]
                    with self._write_lock:
                        _commit(self._writer_connection, statements)
                with self._progress:
                    self._committed += len(writes)
                    self._progress.notify_all()
        except Exception as cause:
            with self._progress:
                self._failure = cause
                self._progress.notify_all()


def _open_for_writing(path: Path) -> sqlite3.Connection:
    """Open a durable connection: a commit returns when the device has it (WAL, synchronous FULL)."""
    try:
        if not path.exists():
            _create(path)
        connection = connect(path)
        if version_of(connection, path) == 1:
            migrate(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
    except (sqlite3.Error, OSError) as cause:
        full = "full" in str(cause) or is_disk_full(cause, path.parent)
        raise RunStoreError(
            f"the episodes at {path} cannot be opened: {'the disk is full' if full else cause}",
            hint=FREE_SOME if full else "the file is damaged, not an episode store, or not writable",
        ) from cause
    return connection


def _create(path: Path) -> None:
    """Create an empty store under a temporary name first, so that a kill leaves none or a complete one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    create(temporary)
    temporary.rename(path)
    fsync_folder(path.parent)


def _ids(episodes: Collection[str]) -> str:
    return orjson.dumps([column_text(episode_id) for episode_id in episodes]).decode()


def _commit(connection: sqlite3.Connection, statements: Sequence[_Statement]) -> None:
    with _transaction(connection):
        for statement, values in statements:
            if connection.execute(statement, values).rowcount != 1:
                raise LookupError(f"no recorded episode {values[-1]!r} to annotate")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _columns(episode: Episode) -> tuple[object, ...]:
    reward, nodes = episode.reward, episode.forest.nodes
    error = None if episode.error is None else column_text(episode.error)
    named = _ERROR_TYPE.match(error) if error else None
    return (
        column_text(episode.episode_id),
        episode.split,
        episode.step,
        column_text(episode.task.task_id),
        episode.repeat,
        episode.attempt,
        episode.status,
        None if reward is None else float(reward.raw_reward),
        None if reward is None else int(reward.is_success),
        named.group(1) if named else ("error" if episode.status == "error" else None),
        error,
        sum(len(node.token_ids) for node in nodes),
        sum(node.n_sampled for node in nodes),
        episode.n_trained,
        sum(node.sampled for node in nodes),
        len(episode.forest.leaves()),
        agents_of(nodes),
        episode.timings.get("total"),
    )


def _annotation(advantages: Sequence[float] | None, not_trained: str | None) -> tuple[object, ...]:
    return (None if advantages is None else orjson.dumps(list(advantages)).decode(), not_trained)


def _folded_text(snapshot: dict[str, Any]) -> bytes:
    messages = ((node.get("reasoning"), node["content"], node.get("tool_calls", ())) for node in snapshot["forest"])
    return folded(joined(messages))
