"""Responses of the server: JSON; an error is one line with its fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from astune.runs.wire import to_json
from astune.schema import AstuneError
from astune.schema.plain_json import whole


class Refusal(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Numbers that JSON cannot hold become null."""
    return Response(as_json(value), status_code=status, headers=headers, media_type="application/json")


def as_json(value: object) -> bytes:
    """Lone surrogates, which models and users' code write, become �."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(whole(value), option=option)


def plain(value: object) -> Any:
    """Convert objects left by user code in an episode to plain JSON.

        (1, nan)    gives  [1, null]

    What else JSON cannot hold stays wrapped as `astune.runs.wire` says.
    """
    return _unwrapped(to_json(value))


def plain_text(text: str) -> str:
    """The text as JSON can hold it, and as a search reads it: what is no whole character is a question mark."""
    return text.encode("utf-8", "replace").decode()


def _unwrapped(value: Any) -> Any:
    match value:
        case [*items]:
            return [_unwrapped(item) for item in items]
        case {"$float": _}:
            return None
        case {"$tuple": items}:
            return _unwrapped(items)
        case {**named}:
            return {name: _unwrapped(item) for name, item in named.items()}
        case _:
            return value


def refused(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return json_answer({"error": refusal.message, "hint": refusal.hint}, status=refusal.status)


def unreadable(_: Request, error: Exception) -> Response:
    """A file of the run cannot be read; the request was all right."""
    assert isinstance(error, AstuneError)
    return json_answer({"error": error.message, "hint": error.hint}, status=500)


def http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hint = "the viewer answers GET, and POST at /api/notes" if error.status_code == 405 else ""
    return json_answer({"error": error.detail, "hint": hint}, status=error.status_code, headers=error.headers)


def defect(_: Request, error: Exception) -> Response:
    """Message that Starlette then logs, with its traceback."""
    return json_answer({"error": f"{type(error).__name__} in the viewer", "hint": "its log says more"}, status=500)
