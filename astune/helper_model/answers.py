"""Answers of helper models on disk, so that the same questions cost nothing the second time and are answered alike."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astune.config.cache import cache_dir
from astune.schema import ConfigError

_FILE = "answers.sqlite3"
_WAIT_S = 30.0


class Answers:
    """A table of answers by question. Several processes may use one folder; no key is ever in it.

    Raises:
        ConfigError: by each method, where the folder or its table cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder = folder or cache_dir() / "helper_model"
        with self._usable():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._table = sqlite3.connect(
                folder / _FILE, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._table.execute("PRAGMA journal_mode=WAL")
            self._table.execute("PRAGMA synchronous=NORMAL")
            self._table.execute("CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, answer TEXT NOT NULL)")

    def get(self, question: str) -> str | None:
        with self._usable():
            row = self._table.execute("SELECT answer FROM answers WHERE question = ?", (question,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, question: str, answer: str) -> None:
        with self._usable():
            self._table.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (question, answer))

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as cause:
            raise ConfigError(
                f"{self._folder}, which keeps the helper model's answers, cannot be used: {cause}",
                hint="delete it, name another folder by ASTUNE_CACHE, or set helper_model.cache to false",
            ) from cause


def name_of(question: dict[str, Any]) -> str:
    """The name under which a question's answer is kept: a digest of all that decides the answer."""
    text = json.dumps(question, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
