"""Answers on disk, for a gateway that is killed and comes back: what was sampled is not sampled again.

An answer is written before it is sent. It is found by its idempotency key, or, for a request that an SDK marks as a
repetition, by the request's body; a request that was answered for good need not be known any more.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from astune.gateway.chat_completions import Sampled
from astune.schema import ConfigError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY,
    access BLOB NOT NULL,
    digest BLOB NOT NULL,
    idempotency_key TEXT,
    delivered INTEGER NOT NULL DEFAULT 0,
    sampled TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_digest ON answers (access, digest);
CREATE INDEX IF NOT EXISTS by_key ON answers (access, idempotency_key);
"""


class KeptAnswers(NamedTuple):
    """The answers to one request."""

    number: int
    digest: bytes
    idempotency_key: str | None
    delivered: bool
    answers: list[Sampled]


class AnswerStore:
    """The answers of all keys in one SQLite file.

    Raises:
        ConfigError: the file cannot be written, or is none of ours.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute("PRAGMA synchronous=FULL")
            self._rows.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as cause:
            raise ConfigError(f"answers cannot be kept in {path}: {cause}", hint="name another file") from cause

    def put(self, access: bytes, digest: bytes, idempotency_key: str | None, answers: Sequence[Sampled]) -> int:
        """Keep the answers to one request; returns their number. They are on disk when this returns.

        Args:
            access: names the key that the request came with, without being one.
            digest: of the request's body.
        """
        written = json.dumps([asdict(answer) for answer in answers])
        with self._lock:
            row = (access, digest, idempotency_key, written)
            added = self._rows.execute(
                "INSERT INTO answers (access, digest, idempotency_key, sampled) VALUES (?, ?, ?, ?)", row
            )
            return added.lastrowid or 0

    def delivered(self, number: int) -> None:
        """Note that the answers were sent to their end."""
        with self._lock:
            self._rows.execute("UPDATE answers SET delivered = 1 WHERE number = ?", (number,))

    def kept(self, access: bytes) -> list[KeptAnswers]:
        """Everything that is kept for a key, oldest first."""
        with self._lock:
            rows = self._rows.execute(
                "SELECT number, digest, idempotency_key, delivered, sampled FROM answers"
                " WHERE access = ? ORDER BY number",
                (access,),
            ).fetchall()
        return [
            KeptAnswers(number, digest, key, bool(delivered), [Sampled(**answer) for answer in json.loads(written)])
            for number, digest, key, delivered, written in rows
        ]
