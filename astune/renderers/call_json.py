"""JSON of a tool call, read whole and while it is written.

    {"name": "look", "arguments": {"city": "Ro        is a call of look, whose arguments begin with {"city": "Ro

What is read of a beginning is a beginning of what is read in the end: of an unfinished call only what no continuation
that makes it a call can change. An object that repeats a key is therefore none. One with NaN or 1e999 is none either:
Python reads them as numbers, which no answer in JSON can hold.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from astune.schema.plain_json import strict_json, whole

_LEXEME = re.compile(r'[ \t\n\r]*([{\[}\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+)', re.DOTALL)
_OPEN_STRING = re.compile(r'[ \t\n\r]*"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HALF_CHARACTER = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2}|[\ud800-\udbff])\Z")
_CLOSERS = {"{": "}", "[": "]"}
_IN_ARGUMENTS = 2
"""Nesting from which an unfinished string is one of the arguments."""


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, repeats a key, has a number that JSON has not, or is nested too deep.
    """
    return strict_json(text, _object)


def is_readable(name: Any, arguments: Any, written: Any) -> bool:
    """Return whether a call is one for every agent; models write, and endpoints pass on, what is none.

    Args:
        written: the text of its JSON, if there is one.
    """
    named = isinstance(name, str) and bool(name.strip())
    repeats = isinstance(written, str) and repeats_a_key(written)
    return named and is_object(arguments) and not repeats and not is_beyond_json(arguments)


def repeats_a_key(text: str) -> bool:
    """Return whether this is JSON in which an object has a key twice."""
    try:
        read_json(text)
    except _RepeatedKey:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def is_beyond_json(arguments: Any) -> bool:
    """Return whether arguments, or their text, have a number that JSON has not, or are nested too deep."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        strict_json(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return False


def is_object(arguments: Any) -> bool:
    """Return whether arguments, or their text, are an object, as those of every call; none at all are an empty one."""
    if isinstance(arguments, str) and arguments:
        try:
            return isinstance(json.loads(arguments), dict)
        except (ValueError, RecursionError):
            return False
    return not arguments or isinstance(arguments, dict)


def spelled(arguments: dict[str, Any] | str | None) -> str:
    """A call's arguments, or their text, as its agent reads them."""
    if isinstance(arguments, str) and "\\ud" in arguments.lower():  # half a character may be spelled out
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, str):
        arguments = json.dumps(whole(arguments or {}), ensure_ascii=False)
    return whole(arguments)


def beginning_of_call(text: str) -> tuple[str, str] | None:
    """Return a call's name, and the beginning of its arguments; None where its name is not there yet.

    Args:
        text: the beginning of `{"name": ..., "arguments": {...}}`.
    """
    if (closed := _closed(text)) is None:
        return None
    try:
        call: dict[str, Any] = read_json(closed.text + closed.closers)
    except (ValueError, RecursionError):
        return None
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name.strip():
        return None
    if not isinstance(arguments, dict):
        return whole(name), ""
    spelling = spelled(arguments)
    if list(call)[-1] == "arguments":  # the object that is still open; the last closer is the call's own
        spelling = spelling[: len(spelling) - max(0, len(closed.closers) - 1)]
    return whole(name), spelling


class _RepeatedKey(ValueError):
    """An object has a key twice."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len({whole(key) for key in value}) < len(pairs):
        raise _RepeatedKey("an object has a key twice")
    return value


class _Closed(NamedTuple):
    """A beginning whose values are whole, but for an open string of the arguments, and what completes it."""

    text: str
    closers: str


def _closed(text: str) -> _Closed | None:
    """The longest beginning that can be completed; None where there is none, or what is there is no object."""
    found: _Closed | None = None
    closers: list[str] = []
    is_key, at, after_value = False, 0, False
    while (lexeme := _LEXEME.match(text, at)) is not None:
        piece = lexeme[1]
        if not closers and piece != "{":
            return found  # text behind the object, or no object
        if after_value:  # a number is whole when something follows it
            found = _Closed(text[:at], "".join(reversed(closers)))
        at, after_value = lexeme.end(), False
        if piece in _CLOSERS:
            closers.append(_CLOSERS[piece])
            found = _Closed(text[:at], "".join(reversed(closers)))
            is_key = piece == "{"
        elif piece in "}]":
            if closers.pop() != piece:
                return None
            found = _Closed(text[:at], "".join(reversed(closers)))
        elif piece == ",":
            is_key = closers[-1] == "}"
        elif piece == ":":
            is_key = False
        elif not is_key:
            after_value = True
            if piece[0] == '"':
                found = _Closed(text[:at], "".join(reversed(closers)))
    opened = _OPEN_STRING.match(text, at)
    if opened is not None and not is_key and len(closers) >= _IN_ARGUMENTS:
        written = _HALF_CHARACTER.sub("", opened[0])
        return _Closed(text[:at] + written, '"' + "".join(reversed(closers)))
    return found
