"""Conversations of a served model, from the store that `astune serve` writes: rows of a list, and one session."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from astune.env_service.base import text_of
from astune.feedback.sessions import SessionFilter, SessionOrder, SessionReader, SessionRow
from astune.runs import find_text
from astune.schema import EnvError, Message
from astune.viewer._answers import Refusal, plain, plain_text

_QUESTION_CHARACTERS = 300
_SHOWN = [field.name for field in fields(SessionRow) if field.name != "whole"]
_BETTER = "corrected_answer"
_HINT = "`astune serve` keeps conversations in feedback.sqlite3; name another file with `astune view --store FILE`"


class Conversations:
    """Every method raises Refusal where there is no store or session, and RunStoreError where it cannot be read. The
    store at `path` may be written later; None where none is shown."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @property
    def path(self) -> Path | None:
        """The store, if it is there now."""
        return self._path if self._path is not None and self._path.is_file() else None

    def page(self, wanted: SessionFilter, order: SessionOrder, *, offset: int, limit: int) -> dict[str, Any]:
        """A page of the sessions that are wanted, and how many there are in all."""
        total, rows = self._reader().page(wanted, order, offset=offset, limit=limit)
        return {"total": total, "rows": [_row(row, wanted.text) for row in rows]}

    def counts(self) -> dict[str, list[tuple[str, int]]]:
        return self._reader().counts()

    def session(self, key: str) -> list[dict[str, Any]]:
        answers = self._reader().session(key)
        if not answers:
            raise Refusal(404, f"there is no session {key!r}", hint="its user may have asked for it to be deleted")
        return [plain(asdict(answer)) for answer in answers]

    def _reader(self) -> SessionReader:
        if self.path is None:
            raise Refusal(404, "there are no conversations here", hint=_HINT)
        return SessionReader(self.path)


def _row(row: SessionRow, sought: str | None) -> dict[str, Any]:
    messages = [message for answer in row.whole for message in answer.messages]
    asked = next((_text(message) for message in messages if message.get("role") == "user"), "")
    opinions = [rating[name] for answer in row.whole for rating in answer.ratings for name in ("comment", _BETTER)]
    texts = (plain_text(text) for text in [*map(_text, messages), *filter(None, opinions)])
    found = (find_text(text, sought) for text in texts) if sought else ()
    snippet = next((each for each in found if each is not None), None)
    shown = {name: getattr(row, name) for name in _SHOWN}
    return shown | {
        "question": asked[:_QUESTION_CHARACTERS],
        "snippet": asdict(snippet) if snippet is not None else None,
    }


def _text(message: Message) -> str:
    with suppress(EnvError):  # content of a shape that no agent writes
        return plain_text(text_of(message))
    return ""
