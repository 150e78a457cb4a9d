"""Sessions of a store, for browsing: a page of those that a filter matches, and one with its feedback.

A session is a conversation of one user with a model. Its answers come in order, and each has the messages that are
new since the answer before. The store is only read; an interaction without a session is a session of its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from astune.feedback.store import known_user
from astune.schema import Message, RunStoreError

OpinionKind = Literal["liked", "disliked", "corrected", "commented", "implicit", "none"]
SessionOrder = Literal["newest", "oldest", "worst", "longest"]
_WAIT_S = 5.0
_KEY = "CASE i.session WHEN '' THEN i.id ELSE i.session END"
_OPINIONS = {
    "liked": "kind = 'explicit' AND rating > 0",
    "disliked": "kind = 'explicit' AND rating < 0",
    "corrected": "kind = 'explicit' AND corrected_answer IS NOT NULL",
    "commented": "comment != ''",
    "implicit": "kind != 'explicit'",
}
_ORDERS: dict[SessionOrder, str] = {
    "newest": "ended DESC",
    "oldest": "ended",
    "worst": "disliked - liked DESC, implicit DESC, ended DESC",
    "longest": "answers DESC, ended DESC",
}
_COUNTED = ", ".join(f"TOTAL(o.{name}) AS {name}" for name in _OPINIONS)
_PAGE = f"""
SELECT {_KEY} AS key, COUNT(*) AS answers, MIN(i.created_at) AS begun, MAX(i.created_at) AS ended,
    json_group_array(DISTINCT i.model) AS models, MAX(i.user) AS user, MAX(i.client) AS client,
    MAX(i.source) AS source, {_COUNTED}
FROM interactions i LEFT JOIN (
    SELECT interaction, {", ".join(f"SUM({sql}) AS {name}" for name, sql in _OPINIONS.items())} FROM ratings GROUP BY 1
) o ON o.interaction = i.id
WHERE {_KEY} IN (SELECT {_KEY} FROM interactions i WHERE {{where}})
GROUP BY key ORDER BY {{order}}, key LIMIT ? OFFSET ?
"""
_HOLDS_TEXT = """i.last_message IN (
    WITH RECURSIVE holding (id) AS (
        SELECT messages.id FROM messages, json_tree(messages.message) part
        WHERE part.type = 'text' AND part.key NOT IN ('role', 'type', 'id', 'tool_call_id') AND holds(part.value, ?)
        UNION SELECT messages.id FROM messages JOIN holding ON messages.parent = holding.id
    ) SELECT id FROM holding
) OR i.id IN (SELECT interaction FROM ratings WHERE holds(comment, ?) OR holds(corrected_answer, ?))"""
_UP = """
WITH RECURSIVE up (id, parent, message, height) AS (
    SELECT id, parent, message, 0 FROM messages WHERE id = ?
    UNION ALL SELECT m.id, m.parent, m.message, height + 1 FROM messages m JOIN up ON m.id = up.parent
) SELECT id, message FROM up ORDER BY height DESC
"""
_OF_SESSION = (
    "FROM interactions i WHERE (i.session = ? OR (i.session = '' AND i.id = ?)) ORDER BY i.created_at, i.rowid"
)


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Conditions that one answer of a session fulfils; None is no condition. Times are in seconds since 1970.

    `user` is an id as a client sent it, or its digest; `text` stands in a message, a comment or a better answer.
    """

    text: str | None = None
    model: str | None = None
    client: str | None = None
    user: str | None = None
    opinion: OpinionKind | None = None
    since: float | None = None
    until: float | None = None

    def sql(self) -> tuple[str, list[object]]:
        conditions, values = ["1"], list[object]()
        for sql, value in (
            ("i.model = ?", self.model),
            ("i.client = ?", self.client),
            ("i.user = ?", None if self.user is None else known_user(self.user)),
            ("i.created_at >= ?", self.since),
            ("i.created_at < ?", self.until),
        ):
            if value is not None:
                conditions.append(sql)
                values.append(value)
        if self.opinion is not None:
            given = f"SELECT interaction FROM ratings WHERE {_OPINIONS.get(self.opinion, '1')}"
            conditions.append(f"i.id {'NOT ' if self.opinion == 'none' else ''}IN ({given})")
        if self.text is not None:
            conditions.append(f"({_HOLDS_TEXT})")
            values += [self.text.casefold()] * 3
        return " AND ".join(conditions), values


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """An answer of a session. `messages` are those since the answer before, the answer last.

    `left` is how many messages the conversation had before that this one has not, as where a question was reworded.
    """

    interaction_id: str
    created_at: float
    model: str
    source: str
    tools: list[Any]
    prompt_tokens: int | None
    completion_tokens: int | None
    messages: list[Message]
    left: int
    ratings: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session of a list. `opinions` counts those of each kind that there are."""

    key: str
    answers: int
    begun: float
    ended: float
    models: list[str]
    user: str
    client: str
    source: str
    opinions: dict[str, int]
    whole: list[SessionAnswer]


class SessionReader:
    """Reader of a store, which is opened for each call: another file may take its place.

    Every method raises RunStoreError where the file is no store or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def page(
        self, wanted: SessionFilter, order: SessionOrder, *, offset: int, limit: int
    ) -> tuple[int, list[SessionRow]]:
        """Return the number of sessions that have such an answer, and a page of them."""
        where, values = wanted.sql()
        with self._reading() as file:
            [total] = file.execute(
                f"SELECT COUNT(DISTINCT {_KEY}) FROM interactions i WHERE {where}", values
            ).fetchone()
            found = file.execute(_PAGE.format(where=where, order=_ORDERS[order]), [*values, limit, offset]).fetchall()
            tokens = _token_columns(file)
            return total, [_row(file, row, tokens) for row in found]

    def counts(self) -> dict[str, list[tuple[str, int]]]:
        """Count the sessions of each model and client, and with each kind of opinion."""
        with self._reading() as file:
            by = "SELECT {0}, COUNT(DISTINCT {1}) FROM interactions i GROUP BY 1 ORDER BY 2 DESC, 1"
            found = {name: file.execute(by.format(f"i.{name}", _KEY)).fetchall() for name in ("model", "client")}
            found["opinion"] = [(kind, _with_opinion(file, kind)) for kind in get_args(OpinionKind)]
            return found

    def session(self, key: str) -> list[SessionAnswer]:
        """The answers of a session, in order; none where there is no such session."""
        with self._reading() as file:
            return _answers(file, key, _token_columns(file))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._open()) as file:
                file.create_function("holds", 2, _holds, deterministic=True)
                yield file
        except (sqlite3.Error, OSError, ValueError) as cause:
            raise RunStoreError(
                f"{self.path} cannot be read as a store of conversations: {cause}",
                hint="`astune serve` and `astune feedback import` write one",
            ) from cause

    def _open(self) -> sqlite3.Connection:
        """A connection; of a store in a folder that cannot be written, to the file as it is."""
        address = f"file:{quote(str(self.path.resolve()))}?mode=ro"
        try:
            file = sqlite3.connect(address, uri=True, timeout=_WAIT_S)
            file.execute("SELECT 1 FROM interactions LIMIT 1")
        except sqlite3.OperationalError:
            file = sqlite3.connect(f"{address}&immutable=1", uri=True, timeout=_WAIT_S)
        return file


def _token_columns(file: sqlite3.Connection) -> str:
    """Return the two columns of counted tokens, which a store of an older version lacks."""
    there = {name for _, name, *_ in file.execute("PRAGMA table_info(interactions)")}
    return "prompt_tokens, completion_tokens" if "prompt_tokens" in there else "NULL, NULL"


def _row(file: sqlite3.Connection, found: Sequence[Any], tokens: str) -> SessionRow:
    key, answers, begun, ended, models, user, client, source, *counts = found
    opinions = {name: int(count) for name, count in zip(_OPINIONS, counts, strict=True) if count}
    whole = _answers(file, key, tokens)
    return SessionRow(key, answers, begun, ended, json.loads(models), user, client, source, opinions, whole)


def _answers(file: sqlite3.Connection, key: str, tokens: str) -> list[SessionAnswer]:
    columns = f"i.last_message, i.id, i.created_at, i.model, i.source, i.tools, {tokens}"
    answers: list[SessionAnswer] = []
    before: list[int] = []
    for last, identity, at, model, source, tools, read, sampled in file.execute(
        f"SELECT {columns} {_OF_SESSION}", (key, key)
    ).fetchall():
        path = file.execute(_UP, (last,)).fetchall()
        ids = [message_id for message_id, _ in path]
        shared = _shared(before, ids)
        answers.append(
            SessionAnswer(
                interaction_id=identity,
                created_at=at,
                model=model,
                source=source,
                tools=json.loads(tools),
                prompt_tokens=read,
                completion_tokens=sampled,
                messages=[json.loads(message) for _, message in path[shared:]],
                left=len(before) - shared,
                ratings=_ratings(file, identity),
            )
        )
        before = ids
    return answers


def _ratings(file: sqlite3.Connection, interaction: str) -> list[dict[str, Any]]:
    names = ("rating", "comment", "corrected_answer", "user", "kind", "weight", "created_at")
    ordered = f"SELECT {', '.join(names)} FROM ratings WHERE interaction = ? ORDER BY created_at, digest"
    return [dict(zip(names, row, strict=True)) for row in file.execute(ordered, (interaction,))]


def _with_opinion(file: sqlite3.Connection, kind: OpinionKind) -> int:
    where, values = SessionFilter(opinion=kind).sql()
    [count] = file.execute(f"SELECT COUNT(DISTINCT {_KEY}) FROM interactions i WHERE {where}", values).fetchone()
    return count


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of messages that two conversations share from their beginning on."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _holds(value: object, sought: str) -> bool:
    return isinstance(value, str) and sought in value.casefold()
