"""Files of traces that other tools wrote. A broken record is counted and named, and the others are read.

AgentScope Studio    an SQLite database with a table `span_table`
OTLP                 JSON with `resourceSpans`, one object or one a line
Langfuse             an export of observations: `traceId`, `type`, `input`, `output`
MLflow               traces in JSON: `info` and `data.spans`
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astune.feedback.interaction import Interaction, Rating, check_conversation
from astune.feedback.rating_files import as_number, seconds_of
from astune.feedback.spans import Span, Unreadable, interaction_of, ratings_of
from astune.schema import TaskReaderError
from astune.schema.plain_json import require_text

_SQLITE = b"SQLite format 3\x00"
_NS = 1e9


@dataclass
class TraceFile:
    """Content of a file; `broken` has each unreadable record with the reason."""

    source: str
    interactions: list[Interaction] = field(default_factory=list)
    ratings: list[Rating] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def is_trace_file(path: Path) -> bool:
    """Whether a file holds traces, by its first bytes."""
    with path.open("rb") as file:
        start = file.read(65536)
    if start.startswith(_SQLITE):
        return True
    return any(mark in start for mark in (b'"resourceSpans"', b'"traceId"', b'"spans"')) and path.suffix != ".csv"


def read_traces(path: Path) -> TraceFile:
    """Raises TaskReaderError if the file cannot be read, or holds no traces in a known format."""
    try:
        with path.open("rb") as file:
            database = file.read(len(_SQLITE)) == _SQLITE
        return _whole(_studio(path) if database else _json_file(path))
    except (OSError, sqlite3.Error) as cause:
        raise TaskReaderError(f"{path} cannot be read: {cause}", hint="check the file") from cause


def _whole(found: TraceFile) -> TraceFile:
    """Return the records without those that could not be read or stored later."""
    kept: list[Interaction] = []
    for each in found.interactions:
        try:
            check_conversation(each)
            kept.append(each)
        except (ValueError, TypeError, AttributeError, RecursionError) as cause:
            found.broken.append(f"trace {ascii(each.interaction_id)[1:-1]}: {cause}")
    found.interactions = kept
    known = {each.interaction_id for each in kept}
    found.ratings = [each for each in found.ratings if each.interaction_id in known and _storable(each, found)]
    return found


def _storable(rating: Rating, found: TraceFile) -> bool:
    try:
        if rating.rating is not None and not math.isfinite(rating.rating):
            raise ValueError(f"the rating is {rating.rating}")
        require_text([rating.comment, rating.corrected_answer, rating.user])
    except ValueError as cause:
        found.broken.append(f"rating of trace {rating.interaction_id}: {cause}")
        return False
    return True


def _studio(path: Path) -> TraceFile:
    found = TraceFile("agentscope-studio")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(span_table)")}
        if "attributes" not in columns:
            raise TaskReaderError(f"{path} has no table span_table with attributes", hint="name Studio's database")
        names = [next((name for name in each if name in columns), "NULL") for each in _COLUMNS]
        rows = database.execute(f"SELECT {', '.join(names)}, attributes FROM span_table")
        spans = list(_read_each(rows, _studio_span, found))
    return _collected(spans, found)


_COLUMNS = (
    ("traceId", "trace_id"),
    ("spanId", "span_id", "id"),
    ("name", "spanName"),
    ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time"),
    ("events",),
)
"""Attribute names of a span in Studio's versions."""


def _studio_span(row: tuple[Any, ...]) -> Span:
    trace, span, name, start, events, attributes = row
    read = json.loads(attributes)
    if not isinstance(read, dict):
        raise TypeError("attributes are no object")
    own_events = tuple(_events(json.loads(events or "[]")))
    return Span(str(trace), str(span), str(name), _seconds(start), _flat(read), own_events)


def _json_file(path: Path) -> TraceFile:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    found = TraceFile("otlp")
    try:
        whole = json.loads(text)
        records = whole if isinstance(whole, list) else [whole]
    except ValueError:
        records = [each for each in _read_each(filter(str.strip, text.split("\n")), json.loads, found) if each]
    records = [each for each in records if isinstance(each, dict)]
    if any("resourceSpans" in each for each in records):
        spans = [span for each in records for span in _read_each(_otlp_records(each), _otlp_span, found)]
        return _collected(spans, found)
    if any("data" in each and "info" in each for each in records):
        return _mlflow(records, found)
    if any("traceId" in each or "trace_id" in each for each in records):
        return _langfuse(records, found)
    raise TaskReaderError(
        f"{path} holds no traces in a known format",
        hint="OTLP JSON, an export of Langfuse's observations, MLflow's traces, or AgentScope Studio's database",
    )


def _otlp_records(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in request.get("resourceSpans") or []:
        for scope in resource.get("scopeSpans") or []:
            yield from scope.get("spans") or []


def _otlp_span(record: dict[str, Any]) -> Span:
    return Span(
        str(record["traceId"]),
        str(record["spanId"]),
        str(record.get("name", "")),
        _seconds(record.get("startTimeUnixNano")),
        _attributes(record.get("attributes")),
        tuple(_events(record.get("events") or [])),
    )


def _attributes(listed: Any) -> dict[str, Any]:
    """OTLP's list of keys and typed values, or a mapping as it is."""
    if isinstance(listed, dict):
        return _flat(listed)
    return {each["key"]: _value(each.get("value") or {}) for each in listed or []}


def _value(typed: dict[str, Any]) -> Any:
    if "intValue" in typed:
        return int(typed["intValue"])
    if "arrayValue" in typed:
        return [_value(each) for each in typed["arrayValue"].get("values") or []]
    return next(iter(typed.values()), None)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested attributes by their dotted names, as Studio may keep them; lists stay as they are."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        found[f"{prefix}{key}"] = value
    return found


def _events(listed: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in listed:
        if isinstance(each, dict):
            yield str(each.get("name", "")), _attributes(each.get("attributes"))


def _collected(spans: list[Span], found: TraceFile) -> TraceFile:
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    for of_trace in traces.values():
        try:
            interaction = interaction_of(of_trace, found.source)
        except Unreadable as why:
            found.broken.append(str(why))
            continue
        if interaction is not None:
            found.interactions.append(interaction)
            found.ratings += ratings_of(of_trace)
    return found


def _langfuse(records: list[dict[str, Any]], found: TraceFile) -> TraceFile:
    found.source = "langfuse"
    last: dict[str, dict[str, Any]] = {}
    for each in records:
        if str(each.get("type", "")).upper() == "GENERATION":
            trace = str(each.get("traceId") or each.get("trace_id"))
            if trace not in last or str(each.get("startTime", "")) >= str(last[trace].get("startTime", "")):
                last[trace] = each
    found.interactions = list(_read_each(last.values(), _langfuse_interaction, found))
    return found


def _langfuse_interaction(record: dict[str, Any]) -> Interaction:
    given, answer = record["input"], record["output"]
    messages = given["messages"] if isinstance(given, dict) else given
    tools = given.get("tools") or [] if isinstance(given, dict) else []
    return Interaction(
        str(record.get("traceId") or record.get("trace_id")),
        [*_checked(messages), _answer(answer)],
        session=str(record.get("sessionId") or ""),
        user=str(record.get("userId") or ""),
        model=str(record.get("model") or ""),
        tools=list(tools),
        source="langfuse",
        created_at=seconds_of(record.get("startTime")),
    )


def _mlflow(records: list[dict[str, Any]], found: TraceFile) -> TraceFile:
    found.source = "mlflow"
    for interaction, ratings in _read_each(records, _mlflow_trace, found):
        found.interactions.append(interaction)
        found.ratings += ratings
    return found


def _mlflow_trace(trace: dict[str, Any]) -> tuple[Interaction, list[Rating]]:
    interaction, ratings = _mlflow_interaction(trace), list[Rating]()
    for each in trace["info"].get("assessments") or []:
        value = (each.get("feedback") or {}).get("value")
        if isinstance(value, bool | int | float):
            number = (1.0 if value else -1.0) if isinstance(value, bool) else as_number(value)
            ratings.append(Rating(interaction.interaction_id, number, str(each.get("rationale") or "")))
    return interaction, ratings


def _mlflow_interaction(trace: dict[str, Any]) -> Interaction:
    info = trace["info"]
    calls = [span for span in trace["data"]["spans"] if _own(span, "mlflow.spanType") in ("CHAT_MODEL", "LLM")]
    last = calls[-1]
    given, output = _own(last, "mlflow.spanInputs"), _own(last, "mlflow.spanOutputs")
    answer = output["choices"][0]["message"] if isinstance(output, dict) and "choices" in output else output
    metadata = info.get("trace_metadata") or {}
    return Interaction(
        str(info.get("trace_id") or info.get("request_id")),
        [*_checked(given["messages"]), _answer(answer)],
        session=str(metadata.get("mlflow.trace.session") or ""),
        user=str(metadata.get("mlflow.trace.user") or ""),
        model=str(given.get("model") or ""),
        tools=list(given.get("tools") or []),
        source="mlflow",
        created_at=seconds_of(info.get("request_time")),
    )


def _own(span: dict[str, Any], name: str) -> Any:
    value = (span.get("attributes") or {}).get(name)
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _checked(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        raise TypeError("the input is no list of messages")
    return [{"content": "", **each} for each in messages]


def _answer(answer: Any) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    if isinstance(answer, dict) and ("content" in answer or "tool_calls" in answer):
        calls = {"tool_calls": answer["tool_calls"]} if answer.get("tool_calls") else {}
        return {"role": "assistant", "content": answer.get("content") or "", **calls}
    raise TypeError("the output is no message")


def _read_each(records: Iterable[Any], read: Any, found: TraceFile) -> Iterator[Any]:
    """Apply `read` to each record; failures are named in `found`."""
    for number, record in enumerate(records, 1):
        try:
            yield read(record)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as cause:
            found.broken.append(f"record {number}: {type(cause).__name__}: {str(cause)[:200]}")


def _seconds(nanoseconds: Any) -> float:
    """Seconds of a time in nanoseconds, or of an ISO text."""
    try:
        return int(nanoseconds) / _NS
    except (TypeError, ValueError, OverflowError):
        return seconds_of(nanoseconds)
