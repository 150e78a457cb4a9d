"""Answers of helper models on disk, so that the same questions cost nothing the second time and are answered alike."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from astune.config.cache import cache_dir
from astune.schema import ConfigError

_FILE = "answers.sqlite3"
_WAIT_S = 30.0


class Answers:
    """A table of answers by question. Several processes may use one folder; no key is ever in it."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or cache_dir() / "helper_model"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._table = sqlite3.connect(
                folder / _FILE, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._table.execute("PRAGMA journal_mode=WAL")
            self._table.execute("PRAGMA synchronous=NORMAL")
            self._table.execute("CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as cause:
            raise ConfigError(
                f"{folder}, which keeps the helper model's answers, cannot be used: {cause}",
                hint="delete it, name another folder by ASTUNE_CACHE, or set helper_model.cache to false",
            ) from cause

    def get(self, question: str) -> str | None:
        row = self._table.execute("SELECT answer FROM answers WHERE question = ?", (question,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, question: str, answer: str) -> None:
        self._table.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (question, answer))


def name_of(question: dict[str, Any]) -> str:
    """The name under which a question's answer is kept: a digest of all that decides the answer."""
    text = json.dumps(question, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
