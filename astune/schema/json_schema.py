"""JSON schemas as a model is held to them."""

from __future__ import annotations

from typing import Any

_SUBSCHEMA = ("items", "additionalItems", "contains", "not", "if", "then", "else", "prefixItems", "anyOf", "oneOf")
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def closed_schema(schema: Any) -> Any:
    """The schema with its objects closed: one that names its properties has no others, unless it speaks of them.

        {"properties": {"n": {...}}}                                  -> {..., "additionalProperties": false}
        {"properties": {"n": {...}}, "additionalProperties": true}    as it is

    JSON Schema leaves objects open, and a small model would fill them with names of its own without end. Parts of
    an `allOf` stay open, since each of them names only some of an object's properties.
    """
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in _SUBSCHEMA:
        if key in schema:
            closed[key] = closed_schema(schema[key])
    for key in _NAMED_SUBSCHEMAS:
        if isinstance(schema.get(key), dict):
            closed[key] = {name: closed_schema(part) for name, part in schema[key].items()}
    spoken_of = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "$ref"}
    if "properties" in schema and not spoken_of & schema.keys():
        closed["additionalProperties"] = False
    return closed
