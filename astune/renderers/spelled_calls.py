"""Grammar of calls that write each argument after its name: the format of GLM and Qwen3.5.

    <tool_call>add
    <arg_key>a</arg_key>
    <arg_value>7</arg_value>
    </tool_call>

Calls with two arguments, with one, and with none show a template's marks. Texts are verbatim, up to the mark that ends
a value; everything else is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astune.renderers.beginnings import common_beginning
from astune.renderers.renderer import Tool
from astune.schema import ONE_LINE_JSON, WorkflowError, closed_schema

Piece = str | int
"""Text, or a control token."""

_NAMES, _NUMBERS, _TEXT = ("probe_a", "probe_b"), (70707, 80808), "letters"
_LIMITS = {"pattern", "format", "minLength", "maxLength"}
"""Limits of a schema that cannot be enforced on a verbatim text."""


def literal(pieces: Sequence[Piece]) -> str:
    """The pieces in llguidance's notation."""
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False) for piece in pieces
    )


def json_of(schema: dict[str, Any]) -> str:
    """A JSON text that follows the schema, in llguidance's notation."""
    return f"%json {json.dumps({'x-guidance': ONE_LINE_JSON, **closed_schema(schema)}, ensure_ascii=False)}"


def cut(pieces: Sequence[Piece], stops: Sequence[str]) -> list[Piece]:
    """Split the pieces so that each of the stops is a separate piece."""
    at_stops = re.compile(f"({'|'.join(map(re.escape, stops))})")
    parts = (at_stops.split(piece) if isinstance(piece, str) else [piece] for piece in pieces)
    return [part for cut_piece in parts for part in cut_piece if part != ""]


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a call: `before` name `between` value `behind`, for each further argument `further` name `between` value
    `behind`, and `after`. `empty` is a whole call without arguments."""

    before: list[Piece]
    between: list[Piece]
    behind: Piece
    further: list[Piece]
    after: list[Piece]
    empty: list[Piece]


def find_marks(write: Callable[[dict[str, Any]], list[Piece]]) -> Marks | None:
    """Derive the marks from the template's rendering of a call; None if it uses another format."""
    pair = dict(zip(_NAMES, _NUMBERS, strict=True))
    stops = [str(part) for item in pair.items() for part in item]
    parts = cut(write(pair), stops)
    if [part for part in parts if part in stops] != stops:
        return None
    at = [parts.index(stop) for stop in stops]
    edges = zip([-1, *at], [*at, len(parts)], strict=True)
    before, between, following, again, last = (parts[start + 1 : end] for start, end in edges)
    behind = _common(following, last)
    texts = cut(write({_NAMES[0]: _TEXT}), (_NAMES[0], _TEXT))
    if behind is None or again != between or texts != [*before, _NAMES[0], *between, _TEXT, *last]:
        return None
    return Marks(before, between, behind, _without(following, behind), _without(last, behind), write({}))


def rules(name: str, marks: Marks, parameters: dict[str, Any]) -> Iterator[str]:
    """Return the rule `name` for calls whose arguments follow a schema, with the rules that it needs.

    Raises:
        WorkflowError: the schema limits a text in a way that cannot be enforced on an unquoted text.
    """
    if isinstance(marks.behind, str):
        ending = re.escape(marks.behind).replace("\\\n", "\\n").replace("/", "\\/")
        yield f"{name}_text[lazy]: /(?s:.*){ending}/"
    else:
        yield f"{name}_text: /(?s:.*)/ {literal([marks.behind])}"
    properties: dict[str, Any] = parameters.get("properties") or {}
    required = [key for key in properties if key in parameters.get("required", ())]
    optional = [key for key in properties if key not in required]
    known = {key: f"{name}_{number}" for number, key in enumerate(properties)}
    for key, rule in known.items():
        value = _value(key, properties[key], parameters)
        ended = f"{name}_text" if value is None else f"{value} {literal([marks.behind])}"
        yield f"{rule}: {literal([key, *marks.between])} {ended}"
    further, after = literal(marks.further), literal(marks.after)

    def call(first: str, others: Sequence[str], choices: Sequence[str]) -> str:
        more = [f"{further} {known[key]}" for key in others] + [f"({further} {known[key]})?" for key in choices]
        return " ".join([literal(marks.before), known[first], *more, after])

    if required:
        calls = [call(required[0], required[1:], optional)]
    else:
        calls = [literal(marks.empty), *(call(key, (), optional[at + 1 :]) for at, key in enumerate(optional))]
    yield f"{name}: {' | '.join(calls)}"


def read_as(tool: Tool) -> Tool:
    """The tool as `renderers` has to see it to read such a call: it looks at a parameter's own `type` and `anyOf`, and
    at nothing that these refer to."""
    function: dict[str, Any] = tool["function"]
    parameters: dict[str, Any] = function.get("parameters") or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    read = {key: _read_as(schema, parameters) for key, schema in properties.items()}
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": read}}}


def _read_as(schema: Any, parameters: dict[str, Any]) -> Any:
    resolved = _resolved(schema, parameters)
    if not _may_be_text(resolved, parameters):
        return schema
    values = _values(resolved)
    only_texts = values is not None and all(isinstance(value, str) for value in values)
    if only_texts or (isinstance(resolved, dict) and resolved.get("type") in ("string", ["string"])):
        return {"type": "string"}
    return {"anyOf": [{"type": "string"}]}


def _value(key: str, schema: Any, parameters: dict[str, Any]) -> str | None:
    """Return the grammar of an argument; None for any text."""
    schema = _resolved(schema, parameters)
    if not _may_be_text(schema, parameters):
        whole = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters} | schema
        return json_of(whole)
    values = _values(schema)
    if values is not None:
        spelled = (value if isinstance(value, str) else json.dumps(value) for value in values)
        return f"({' | '.join(literal([value]) for value in spelled)})"
    limits = _LIMITS & schema.keys() if isinstance(schema, dict) else set()
    if limits:
        raise WorkflowError(
            f"a call cannot be forced: its text {key!r} is limited by {', '.join(sorted(limits))}, which this model's "
            "form of calls has no room for",
            hint="leave the limit out of the tool's schema, and check the argument in the tool",
        )
    return None


def _resolved(schema: Any, parameters: dict[str, Any]) -> Any:
    """Resolve a reference to a named part of the whole schema."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    match reference.split("/") if isinstance(reference, str) else None:
        case ["#", ("$defs" | "definitions") as group, name] if name in parameters.get(group, {}):
            return _resolved(parameters[group][name], parameters)
    return schema


def _values(schema: Any) -> list[Any] | None:
    """The values that a schema lists."""
    if not isinstance(schema, dict):
        return None
    return schema.get("enum", [schema["const"]] if "const" in schema else None)


def _may_be_text(schema: Any, parameters: dict[str, Any]) -> bool:
    schema = _resolved(schema, parameters)
    if not isinstance(schema, dict):
        return True
    values = _values(schema)
    if values is not None:
        return any(isinstance(value, str) for value in values)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return any(_may_be_text(part, parameters) for part in schema[union])
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _common(one: Sequence[Piece], other: Sequence[Piece]) -> Piece | None:
    """Return the common prefix of both: a control token, or a text."""
    match one[:1], other[:1]:
        case [str(text)], [str(more)]:
            return text[: common_beginning(text, more)] or None
        case [int(token)], [int(more)] if token == more:
            return token
    return None


def _without(pieces: Sequence[Piece], beginning: Piece) -> list[Piece]:
    first, *others = pieces
    rest = first[len(beginning) :] if isinstance(first, str) and isinstance(beginning, str) else ""
    return [rest, *others] if rest else others
