"""Answer formats requested by an agent, as grammars: OpenAI's `response_format`, or a pydantic model."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from astune.schema import Grammar, WorkflowError, closed_schema

ResponseFormat = type[BaseModel] | dict[str, Any]
"""A pydantic model, or one of

    {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}
    {"type": "json_object"}
    {"type": "regex", "regex": "(yes|no), because .{1,80}"}      the whole answer; OpenAI has no such type
    {"type": "text"}                                             anything
"""


def grammar_of(response_format: ResponseFormat | None) -> Grammar | None:
    """Return the grammar of an answer; None if it is unconstrained.

    Raises:
        WorkflowError: it is not a valid `ResponseFormat`.
    """
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar("json_schema", '{"type": "object"}')
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return _json_grammar(schema)
        case {"type": "regex", "regex": str(pattern)}:
            return Grammar("regex", pattern)
        case type() if issubclass(response_format, BaseModel):
            return _json_grammar(response_format.model_json_schema())
        case _:
            raise WorkflowError(
                f"response_format is {response_format!r}",
                hint='pass a pydantic model, {"type": "json_schema", "json_schema": {"schema": {...}}}, '
                '{"type": "json_object"} or {"type": "regex", "regex": "..."}',
            )


def parsed(text: str, model: type[BaseModel]) -> dict[str, Any] | None:
    """Parse the answer's fields; None if it was cut, or the model's own validators refuse it."""
    try:
        return model.model_validate_json(text).model_dump()
    except ValidationError:
        return None


def _json_grammar(schema: dict[str, Any]) -> Grammar:
    try:
        return Grammar("json_schema", json.dumps(closed_schema(schema), ensure_ascii=False))
    except (TypeError, ValueError) as cause:
        raise WorkflowError(f"a response_format's schema is not JSON: {cause}") from cause
