"""Preparation of JSON schemas for constrained decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_SUBSCHEMA = ("items", "additionalItems", "contains", "prefixItems")
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_NAMING = {"properties", "patternProperties", "dependentSchemas", "$ref", "anyOf", "oneOf", "allOf", "not", "if"}
"""Keywords that name an object's properties; if several stand side by side, each may name only some."""
_BRANCHES = ("then", "else")
"""Keywords that accompany an `if`."""


def closed_schema(schema: Any) -> Any:
    """Return the schema with its objects closed: one that names its properties has no others, unless it says so.

        {"properties": {"n": {...}}}                                  -> {..., "additionalProperties": false}
        {"properties": {"n": {...}}, "additionalProperties": true}    as it is
        {"anyOf": [{"properties": {"n": {...}}}, ...]}                -> a union of closed objects
        {"properties": {"k": {...}}, "anyOf": [...]}                  its parts as they are, and open itself

    JSON Schema leaves objects open, and a small model would add made-up properties without end. A schema that may name
    only some of an object's properties stays open, also where it is referenced: closed, it would forbid the others.
    """
    return _closed(schema, set(_references_in_parts(schema)))


def _closed(schema: Any, stay_open: set[str]) -> Any:
    if isinstance(schema, list):
        return [_closed(item, stay_open) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    naming = schema.keys() & _NAMING
    for key in (*_SUBSCHEMA, *(naming if _is_whole(schema) else ())):
        if key in schema:
            closed[key] = _closed(schema[key], stay_open)
    for key in _NAMED_SUBSCHEMAS:
        if isinstance(schema.get(key), dict):
            closed[key] = {
                name: part if f"#/{key}/{name}" in stay_open else _closed(part, stay_open)
                for name, part in schema[key].items()
            }
    if naming == {"properties"} and not schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
        closed["additionalProperties"] = False
    return closed


def _is_whole(schema: dict[str, Any]) -> bool:
    """Return whether the schema names all of an object's properties: a union, or a single part."""
    match schema.keys() & _NAMING:
        case naming if naming in ({"anyOf"}, {"oneOf"}, {"$ref"}):
            return True
        case naming:
            return naming == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1


def _references_in_parts(schema: Any, *, in_part: bool = False) -> Iterator[str]:
    """Return references to schemas that are one of several naming an object's properties."""
    if isinstance(schema, list):
        for item in schema:
            yield from _references_in_parts(item, in_part=in_part)
    if not isinstance(schema, dict):
        return
    naming = schema.keys() & _NAMING
    partial = in_part or (bool(naming) and naming != {"properties"} and not _is_whole(schema))
    if partial and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    for key, value in schema.items():
        applied = key in _NAMING - {"properties", "patternProperties"} or key in _BRANCHES
        yield from _references_in_parts(value, in_part=partial and applied)
