"""Interactions and ratings in one SQLite file. Each is there once, by its content, and without personal data.

User ids are kept as digests: enough to tell raters apart, and to delete all that belongs to one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astune.feedback.interaction import EXPLICIT, Interaction, Rating, digest_of
from astune.feedback.masking import Masker
from astune.schema import RunStoreError

_WAIT_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS interactions (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, user TEXT NOT NULL, client TEXT NOT NULL, model TEXT NOT NULL,
    messages TEXT NOT NULL, tools TEXT NOT NULL, source TEXT NOT NULL, created_at REAL NOT NULL,
    digest TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS same_as (
    id TEXT PRIMARY KEY, interaction TEXT NOT NULL REFERENCES interactions ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS ratings (
    digest TEXT PRIMARY KEY, interaction TEXT NOT NULL REFERENCES interactions ON DELETE CASCADE, rating REAL,
    comment TEXT NOT NULL, corrected_answer TEXT, user TEXT NOT NULL, kind TEXT NOT NULL, weight REAL NOT NULL,
    created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS of_interaction ON ratings (interaction);
CREATE INDEX IF NOT EXISTS in_session ON interactions (session, created_at);
"""
_INTERACTION = "id, session, user, client, model, messages, tools, source, created_at, digest"
_RATING = "digest, interaction, rating, comment, corrected_answer, user, kind, weight, created_at"


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is thought of one interaction: the weighted mean of its ratings, and the better answer that counts most.

    `weight` is the sum of the ratings' weights; `rating` is None where nobody gave a number.
    """

    rating: float | None
    weight: float
    corrected_answer: str | None
    n_ratings: int


class FeedbackStore:
    """A file, which several threads and processes may use.

    Raises:
        RunStoreError: it cannot be opened.
    """

    def __init__(self, path: Path, masker: Masker | None = None) -> None:
        self._masker = masker or Masker()
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA foreign_keys=ON")
            self._file.executescript(_TABLES)
        except (OSError, sqlite3.Error) as cause:
            raise RunStoreError(f"{path} is no store of feedback: {cause}", hint="name another file") from cause

    def add(self, interaction: Interaction) -> bool:
        """Keep an interaction; False where an equal one is there, which ratings of this one then belong to."""
        masked = replace(
            interaction,
            messages=self._masker.all_of(interaction.messages),
            tools=self._masker.all_of(interaction.tools),
            user=_user(interaction.user),
        )
        row = (
            masked.interaction_id,
            masked.session,
            masked.user,
            masked.client,
            masked.model,
            json.dumps(masked.messages, ensure_ascii=False),
            json.dumps(masked.tools, ensure_ascii=False),
            masked.source,
            masked.created_at,
            masked.digest,
        )
        with self._lock:
            new = self._file.execute(f"INSERT OR IGNORE INTO interactions ({_INTERACTION}) VALUES ({_marks(10)})", row)
            if new.rowcount == 0:
                self._file.execute(
                    "INSERT OR IGNORE INTO same_as SELECT ?, id FROM interactions WHERE digest = ? AND id != ?",
                    (masked.interaction_id, masked.digest, masked.interaction_id),
                )
            return new.rowcount > 0

    def rate(self, rating: Rating) -> bool:
        """Keep a rating; False where an equal one is there.

        Raises:
            KeyError: no interaction has its id.
        """
        with self._lock:
            return self._rate(rating)

    def _rate(self, rating: Rating) -> bool:
        found = self._file.execute(
            "SELECT id FROM interactions WHERE id = ? UNION SELECT interaction FROM same_as WHERE id = ?",
            (rating.interaction_id, rating.interaction_id),
        ).fetchone()
        if found is None:
            raise KeyError(rating.interaction_id)
        corrected = rating.corrected_answer
        masked = replace(
            rating,
            interaction_id=found[0],
            comment=self._masker.text(rating.comment),
            corrected_answer=None if corrected is None else self._masker.text(corrected),
            user=_user(rating.user),
        )
        row = (
            masked.digest,
            masked.interaction_id,
            masked.rating,
            masked.comment,
            masked.corrected_answer,
            masked.user,
            masked.kind,
            masked.weight,
            masked.created_at,
        )
        return self._file.execute(f"INSERT OR IGNORE INTO ratings ({_RATING}) VALUES ({_marks(9)})", row).rowcount > 0

    def replace_implicit(self, ratings: list[Rating]) -> None:
        """Put these in the place of all implicit ratings that were derived before."""
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            self._file.execute("DELETE FROM ratings WHERE kind != ?", (EXPLICIT,))
            for rating in ratings:
                self._rate(rating)
            self._file.execute("COMMIT")

    def interactions(self) -> Iterator[Interaction]:
        """All of them, by session and time."""
        rows = self._file.execute(f"SELECT {_INTERACTION} FROM interactions ORDER BY session, created_at, rowid")
        for identity, session, user, client, model, messages, tools, source, created_at, _ in rows.fetchall():
            yield Interaction(
                identity, json.loads(messages), session, user, client, model, json.loads(tools), source, created_at
            )

    def ratings(self) -> Iterator[Rating]:
        """All of them, by interaction and time."""
        rows = self._file.execute(f"SELECT {_RATING} FROM ratings ORDER BY interaction, created_at, digest")
        for _, *values in rows.fetchall():
            yield Rating(*values)

    def opinions(self) -> dict[str, Opinion]:
        """What is thought of each interaction that anybody rated."""
        of_each: dict[str, list[Rating]] = {}
        for rating in self.ratings():
            of_each.setdefault(rating.interaction_id, []).append(rating)
        return {identity: _opinion(ratings) for identity, ratings in of_each.items()}

    def forget(self, user: str) -> tuple[int, int]:
        """Delete what a user said and thought, and all that was derived from it; the numbers of both that are gone."""
        known = _user(user)
        with self._lock:
            ratings = self._file.execute("DELETE FROM ratings WHERE user = ?", (known,)).rowcount
            interactions = self._file.execute("DELETE FROM interactions WHERE user = ?", (known,)).rowcount
            self._file.execute("VACUUM")  # what is deleted is not left in the file either
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return interactions, ratings

    def close(self) -> None:
        self._file.close()

    @property
    def fingerprint(self) -> str:
        """A name of all that is in it: equal stores give equal tasks."""
        parts: list[Any] = [each.digest for each in self.interactions()] + [each.digest for each in self.ratings()]
        return digest_of(parts)


def _opinion(ratings: list[Rating]) -> Opinion:
    numbers = [(each.rating, each.weight) for each in ratings if each.rating is not None]
    total = sum(weight for _, weight in numbers)
    corrected = [each for each in ratings if each.corrected_answer is not None]
    best = max(corrected, key=lambda each: (each.weight, each.created_at), default=None)
    return Opinion(
        rating=sum(rating * weight for rating, weight in numbers) / total if total else None,
        weight=sum(each.weight for each in ratings),
        corrected_answer=best.corrected_answer if best is not None else None,
        n_ratings=len(ratings),
    )


def _user(user: str) -> str:
    """A digest that tells users apart; one that is a digest already stays."""
    if not user or (len(user) == 18 and user.startswith("u:")):
        return user
    return "u:" + hashlib.sha256(f"astune user {user}".encode()).hexdigest()[:16]


def _marks(n: int) -> str:
    return ", ".join("?" * n)
