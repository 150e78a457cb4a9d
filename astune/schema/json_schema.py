"""JSON schemas as a model is held to them."""

from __future__ import annotations

from typing import Any

_SUBSCHEMA = ("items", "additionalItems", "contains", "prefixItems")
_NAMED_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_WHOLE_UNION = ({"anyOf"}, {"oneOf"})
_NAMING = {"properties", "patternProperties", "dependentSchemas", "$ref", "anyOf", "oneOf", "allOf", "not", "if"}
"""What names an object's properties; where two of them stand side by side, each may name only some."""


def closed_schema(schema: Any) -> Any:
    """The schema with its objects closed: one that names its properties has no others, unless it speaks of them.

        {"properties": {"n": {...}}}                                  -> {..., "additionalProperties": false}
        {"properties": {"n": {...}}, "additionalProperties": true}    as it is
        {"anyOf": [{"properties": {"n": {...}}}, ...]}                -> a union of closed objects
        {"properties": {"k": {...}}, "anyOf": [...]}                  its parts as they are, and open itself

    JSON Schema leaves objects open, and a small model would fill them with names of its own without end. What may
    name only some of an object's properties stays open: closed, it would forbid those that stand beside it.
    """
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    naming = schema.keys() & _NAMING
    for key in (*_SUBSCHEMA, *(naming if naming in _WHOLE_UNION else ())):
        if key in schema:
            closed[key] = closed_schema(schema[key])
    for key in _NAMED_SUBSCHEMAS:
        if isinstance(schema.get(key), dict):
            closed[key] = {name: closed_schema(part) for name, part in schema[key].items()}
    if naming == {"properties"} and not schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
        closed["additionalProperties"] = False
    return closed
