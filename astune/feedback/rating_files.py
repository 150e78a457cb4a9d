"""Ratings in CSV or JSON lines, as people export them: one a row, with the id of what is rated.

`interaction_id`, `conversation_id`, `trace_id` and `span_id` name what is rated; `rating`, `score` and `value` the
number, where `label` may stand instead (up, good, accepted, down, bad, rejected); `comment` or `explanation`;
`corrected_answer`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from astune.feedback.interaction import Rating
from astune.schema import TaskReaderError
from astune.schema.plain_json import require_text

_IDS = ("interaction_id", "conversation_id", "trace_id", "traceId", "span_id")
_SHOWN = 80
_LONGEST_FIELD = 2**31 - 1
_NUMBERS = ("rating", "score", "value")
_COMMENTS = ("comment", "explanation", "rationale")
_LABELS = {"up": 1.0, "thumbs_up": 1.0, "good": 1.0, "accepted": 1.0, "positive": 1.0, "true": 1.0}
_LABELS |= {"down": -1.0, "thumbs_down": -1.0, "bad": -1.0, "rejected": -1.0, "negative": -1.0, "false": -1.0}


def read_ratings(path: Path) -> tuple[list[Rating], list[str]]:
    """The ratings of a .csv or .jsonl file, in its order; and each row that is none, with its reason.

    Raises:
        TaskReaderError: the file cannot be read, or none of its rows is a rating; names the file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise TaskReaderError(f"{path} is not UTF-8 (byte {cause.start})", hint="save the file as UTF-8") from cause
    except OSError as cause:
        raise TaskReaderError(f"{path} cannot be read: {cause.strerror or cause}", hint="check the file") from cause
    ratings: list[Rating] = []
    failures: list[TaskReaderError] = []
    for where, row in _csv_rows(text, path) if path.suffix == ".csv" else _json_rows(text, path):
        try:
            ratings.append(rating_of(_object(row, where), where))
        except TaskReaderError as failure:
            failures.append(failure)
    if failures and not ratings:
        raise failures[0]
    return ratings, [failure.message for failure in failures]


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    number = 0
    try:
        columns = rows.fieldnames or []
        if columns and not set(columns) & set(_IDS):
            raise TaskReaderError(
                f"{path} has no column that names what is rated; its first line is {','.join(columns)[:_SHOWN]!r}",
                hint=f"begin it with the columns' names, parted by commas: one of {', '.join(_IDS)}, and rating",
            )
        for number, row in enumerate(rows, 1):
            yield f"{path}, row {number}", row
    except csv.Error as cause:
        raise TaskReaderError(
            f"{path}, row {number + 1}: {cause}", hint="put a text with commas, quotes or line ends into double quotes"
        ) from cause


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}, row {number}", line


def _object(row: Any, where: str) -> Mapping[str, Any]:
    """The row, read where it is a line of JSON."""
    try:
        read = json.loads(row) if isinstance(row, str) else row
    except (ValueError, RecursionError) as cause:
        raise TaskReaderError(f"{where}: no JSON: {cause}", hint="one JSON object a line") from cause
    if not isinstance(read, dict):
        raise TaskReaderError(f"{where}: no object", hint="one JSON object a line")
    if None in read:  # a row of CSV
        raise TaskReaderError(
            f"{where}: it has more values than there are columns", hint="put a text with commas into double quotes"
        )
    return read


def rating_of(row: Mapping[str, Any], where: str) -> Rating:
    """A row as a rating.

    Raises:
        TaskReaderError: it names no answer, or holds no opinion; begins with `where`.
    """
    identity = _text(row, _IDS, where)
    if identity is None:
        raise TaskReaderError(f"{where}: nothing is named that is rated", hint=f"name it in one of {', '.join(_IDS)}")
    try:
        require_text(dict(row))
    except ValueError as cause:
        raise TaskReaderError(f"{where}: {cause}", hint="write whole characters") from cause
    rating = _number(row, where)
    comment, corrected = _text(row, _COMMENTS, where), _text(row, ("corrected_answer",), where)
    if rating is None and comment is None and corrected is None:
        raise TaskReaderError(
            f"{where}: neither a rating nor a comment nor a corrected answer", hint="give one of them"
        )
    return Rating(
        identity,
        rating,
        comment or "",
        corrected,
        _text(row, ("user", "user_id", "userId"), where) or "",
        created_at=seconds_of(_first(row, ("created_at", "timestamp"))),
    )


def _text(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str | None:
    """The first of these fields as a text, which a number may stand for."""
    value = _first(row, names)
    if isinstance(value, dict | list | bool):
        shown = repr(value)[:_SHOWN]
        raise TaskReaderError(f"{where}: a field of {', '.join(names)} is {shown}", hint="write a text")
    return None if value is None else str(value)


def _number(row: Mapping[str, Any], where: str) -> float | None:
    value = _first(row, _NUMBERS)
    if value is None:
        label = str(_first(row, ("label",)) or "").lower()
        if label and label not in _LABELS:
            raise TaskReaderError(f"{where}: the label is {label!r}", hint=f"it is one of {', '.join(_LABELS)}")
        return _LABELS.get(label)
    number = as_number(value)
    if not math.isfinite(number):
        raise TaskReaderError(f"{where}: the rating is {value!r}", hint="it is -1, 0, 1 or a score")
    return number


def as_number(value: Any) -> float:
    """A value as a number: NaN where it is none, infinite where it is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def seconds_of(value: Any) -> float:
    """A point in time in seconds since 1970, of a number or an ISO text; 0 for none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(as_number(value))
    try:
        text = str(value or "").replace("Z", "+00:00")
        if text.replace(".", "", 1).isdigit():
            return _finite(float(text))
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)
