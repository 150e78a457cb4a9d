"""Interactions and ratings in one SQLite file. Each is there once, by its content, and without personal data.

User ids are kept as digests: enough to tell raters apart, and to delete all that belongs to one. A message is kept once
for all conversations that begin alike: each names its last one, and each message the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from astune.feedback.interaction import EXPLICIT, Interaction, Rating
from astune.feedback.masking import Masker
from astune.schema import Message, RunStoreError

_WAIT_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, digest TEXT NOT NULL, message TEXT NOT NULL,
    UNIQUE (parent, digest)
);
CREATE TABLE IF NOT EXISTS masks (name TEXT PRIMARY KEY, pattern TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS interactions (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, user TEXT NOT NULL, client TEXT NOT NULL, model TEXT NOT NULL,
    last_message INTEGER NOT NULL, tools TEXT NOT NULL, source TEXT NOT NULL, created_at REAL NOT NULL,
    digest TEXT NOT NULL UNIQUE, prompt_tokens INTEGER, completion_tokens INTEGER
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
_UNUSED = """
DELETE FROM messages WHERE id NOT IN (
    WITH RECURSIVE used (id) AS (
        SELECT last_message FROM interactions UNION SELECT parent FROM messages JOIN used USING (id)
    ) SELECT id FROM used
)
"""
_TOKENS = "prompt_tokens, completion_tokens"
_INTERACTION = f"id, last_message, session, user, client, model, tools, source, created_at, {_TOKENS}, digest"
"""Columns in the order of an interaction's fields, and its digest."""
_RATING = "interaction, rating, comment, corrected_answer, user, kind, weight, created_at, digest"
"""Columns in the order of a rating's fields, and its digest."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """Aggregate of the opinions on one interaction: the weighted mean of its ratings, and the better answer with the
    most weight. A user's later rating replaces the earlier one.

    `weight` is the sum of the raters' weights; `rating` is None where there is no number.
    """

    rating: float | None
    weight: float
    corrected_answer: str | None


class FeedbackStore:
    """A file, which several threads and processes may use. Raises RunStoreError if it cannot be opened.

    Args:
        masker: its own patterns are kept in the file, and hold for all that is written into it from then on.
    """

    def __init__(self, path: Path, masker: Masker | None = None) -> None:
        self._lock = threading.Lock()
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations are for its owner alone
            self._file = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            tables = {
                str(name) for (name,) in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if tables and "interactions" not in tables:
                raise sqlite3.DatabaseError(f"it holds {', '.join(sorted(tables))[:80]}")
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA foreign_keys=ON")
            self._file.executescript(_TABLES if tables else f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")
            self._file.execute("SELECT last_message FROM interactions LIMIT 1")
            self._add_columns("prompt_tokens", "completion_tokens")
            self._masker = Masker()
            self._take(masker)
        except OSError as cause:
            raise RunStoreError(
                f"the store of feedback {path} cannot be opened: {cause.strerror}",
                hint="check that you may write there, or name another file",
            ) from cause
        except sqlite3.Error as cause:
            raise RunStoreError(f"{path} is no store of feedback: {cause}", hint="name another file") from cause

    def add(self, interaction: Interaction) -> bool:
        """Store an interaction; False where an equal one exists, to which its ratings then belong."""
        with self._writing():
            masked = replace(
                interaction,
                messages=self._masker.all_of(interaction.messages),
                tools=self._masker.all_of(interaction.tools),
                user=known_user(interaction.user),
            )
            row = {each.name: getattr(masked, each.name) for each in fields(masked)}
            row |= {"messages": self._last_of(masked.messages), "tools": json.dumps(masked.tools, ensure_ascii=False)}
            new = self._insert("interactions", _INTERACTION, *row.values(), masked.digest)
            if not new:
                self._file.execute(
                    "INSERT OR IGNORE INTO same_as SELECT ?, id FROM interactions WHERE digest = ? AND id != ?",
                    (masked.interaction_id, masked.digest, masked.interaction_id),
                )
            return new

    def rate(self, rating: Rating) -> bool:
        """Store a rating; False where an equal one exists, which then has the later of both times: who says the same
        again after another word means it. Raises KeyError if no interaction has its id."""
        with self._writing():
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
            user=known_user(rating.user),
        )
        new = self._insert("ratings", _RATING, *astuple(masked), masked.digest)
        if not new:
            again = "UPDATE ratings SET created_at = max(created_at, ?) WHERE digest = ?"
            self._file.execute(again, (masked.created_at, masked.digest))
        return new

    def replace_implicit(self, ratings: list[Rating]) -> None:
        """Put these in the place of all implicit ratings that were derived before."""
        with self._writing():
            self._file.execute("DELETE FROM ratings WHERE kind != ?", (EXPLICIT,))
            for rating in ratings:
                self._rate(rating)

    def interactions(self, only: Collection[str] | None = None) -> Iterator[Interaction]:
        """All of them, or those with these digests, by session and time. Conversations share their messages."""
        ordered = f"SELECT {_INTERACTION} FROM interactions ORDER BY session, created_at, rowid"
        with self._transaction():
            found = [row for row in self._file.execute(ordered) if only is None or row[-1] in only]
            messages = {
                identity: (parent, json.loads(message))
                for identity, parent, message in self._file.execute("SELECT id, parent, message FROM messages")
            }
        for identity, last, session, user, client, model, tools, *rest, _ in found:
            read: list[Message] = []
            while last:
                last, message = messages[last]
                read.append(message)
            yield Interaction(identity, read[::-1], session, user, client, model, json.loads(tools), *rest)

    def ratings(self, only: Collection[str] | None = None) -> Iterator[Rating]:
        """All of them, or those with these digests, by interaction and time."""
        ordered = f"SELECT {_RATING} FROM ratings ORDER BY interaction, created_at, rowid"
        with self._transaction():
            rows = self._file.execute(ordered).fetchall()
        for *values, digest in rows:
            if only is None or digest in only:
                yield Rating(*values)

    def digests(self) -> tuple[dict[str, str], dict[str, str]]:
        """The interaction that each digest of a conversation, and each of a rating, is of."""
        with self._transaction():
            conversations = self._file.execute("SELECT digest, id FROM interactions").fetchall()
            return dict(conversations), dict(self._file.execute("SELECT digest, interaction FROM ratings").fetchall())

    def digests_of(self, user: str) -> set[str]:
        """The digests of a user's conversations, of all ratings of them, and of the user's own ratings."""
        known = known_user(user)
        with self._transaction():
            found = self._file.execute(
                "SELECT digest FROM interactions WHERE user = :user "
                "UNION SELECT digest FROM ratings WHERE user = :user "
                "OR interaction IN (SELECT id FROM interactions WHERE user = :user)",
                {"user": known},
            )
            return {digest for (digest,) in found}

    def opinions(self) -> dict[str, Opinion]:
        """Return the opinions on each rated interaction."""
        of_each: dict[str, list[Rating]] = {}
        for rating in self.ratings():
            of_each.setdefault(rating.interaction_id, []).append(rating)
        return {identity: _opinion(ratings) for identity, ratings in of_each.items()}

    def forget(self, user: str) -> tuple[int, int]:
        """Delete a user's conversations and ratings, and all that was derived from them; returns how many of each."""
        known = known_user(user)
        with self._writing():
            ratings = self._file.execute("DELETE FROM ratings WHERE user = ?", (known,)).rowcount
            interactions = self._file.execute("DELETE FROM interactions WHERE user = ?", (known,)).rowcount
            self._file.execute(_UNUSED)
        with self._lock, self._store_errors():
            self._file.execute("VACUUM")  # what is deleted is not left in the file either
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return interactions, ratings

    def close(self) -> None:
        self._file.close()

    def _insert(self, table: str, columns: str, *values: object) -> bool:
        """Add a row; False where an equal one exists."""
        marks = ", ".join("?" * len(values))
        added = self._file.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", values)
        return added.rowcount > 0

    def _last_of(self, messages: Sequence[Message]) -> int:
        """The id of the last of these messages, of which those are added that no conversation begins with yet."""
        last = 0
        for message in messages:
            text = json.dumps(message, ensure_ascii=False)
            digest = hashlib.sha256(text.encode()).hexdigest()[:32]
            place = (last, digest)
            found = self._file.execute("SELECT id FROM messages WHERE parent = ? AND digest = ?", place).fetchone()
            if found is None:
                insert = "INSERT INTO messages (parent, digest, message) VALUES (?, ?, ?) RETURNING id"
                found = self._file.execute(insert, (*place, text)).fetchone()
            [last] = found
        return last

    def _add_columns(self, *names: str) -> None:
        """Columns of whole numbers that a store of an earlier version does not have."""
        there = {name for _, name, *_ in self._file.execute("PRAGMA table_info(interactions)")}
        for name in names:
            if name not in there:
                self._file.execute(f"ALTER TABLE interactions ADD COLUMN {name} INTEGER")

    def _take(self, masker: Masker | None) -> None:
        """Write down a masker's own patterns, which replace those of their names, and read what the file has."""
        if masker is not None:
            with self._transaction("IMMEDIATE"):
                self._file.executemany("INSERT OR REPLACE INTO masks VALUES (?, ?)", masker.own.items())
        with self._transaction():
            self._read_masks()

    def _read_masks(self) -> None:
        named = dict(self._file.execute("SELECT name, pattern FROM masks"))
        if named != self._masker.own:
            self._masker = Masker(named)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that writes, with the masks of the file as they are now: another process may have named one."""
        with self._transaction("IMMEDIATE"):
            self._read_masks()
            yield

    @contextmanager
    def _transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"] = "DEFERRED") -> Iterator[None]:
        """
        Raises:
            RunStoreError: the file cannot be read or written; nothing of the transaction is kept.
        """
        with self._lock, self._store_errors():
            self._file.execute(f"BEGIN {kind}")
            try:
                yield
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:  # a full disk has ended it already
                    self._file.execute("ROLLBACK")
                raise

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as cause:
            raise RunStoreError(
                f"conversations and feedback in {self._path}: {cause}",
                hint="check the space left on its disk, and that you may write there",
            ) from cause


def _opinion(ratings: Sequence[Rating]) -> Opinion:
    """The opinion of ratings in the order in which they came. A user counts once: with the last number, and the last
    better answer; each rating without a user is of another."""
    numbers, corrected = dict[tuple[str | int, str], Rating](), dict[tuple[str | int, str], Rating]()
    weights = dict[tuple[str | int, str], float]()
    for at, each in enumerate(ratings):
        rater = each.user or at, each.kind
        weights[rater] = each.weight
        if each.rating is not None:
            numbers[rater] = each
        if each.corrected_answer is not None:
            corrected[rater] = each
    total = sum(each.weight for each in numbers.values())
    return Opinion(
        rating=sum((each.rating or 0.0) * each.weight for each in numbers.values()) / total if total else None,
        weight=sum(weights.values()),
        corrected_answer=_most_wanted(corrected.values()),
    )


def _most_wanted(corrected: Iterable[Rating]) -> str | None:
    """The better answer with the most weight, of several the latest; None where there is none."""
    weights, latest = defaultdict[str, float](float), dict[str, float]()
    for each in corrected:
        answer = each.corrected_answer or ""
        weights[answer] += each.weight
        latest[answer] = max(each.created_at, latest.get(answer, 0.0))
    return max(weights, key=lambda answer: (weights[answer], latest[answer]), default=None)


def known_user(user: str) -> str:
    """Return the digest that a store knows a user by; one that is a digest already stays."""
    if not user or (len(user) == 18 and user.startswith("u:")):
        return user
    return "u:" + hashlib.sha256(f"astune user {user}".encode()).hexdigest()[:16]
