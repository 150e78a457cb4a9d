"""JSON and one-line texts from arbitrary values, for channels between processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

MAX_DETAIL = 500
"""Maximum characters of an error's text that are passed on."""
MAX_DEPTH = 100
"""Levels of a value from outside; deeper ones exceed Python's stack, sooner or later."""


def encoded(value: Any) -> bytes:
    """Encode as compact JSON, including integers of any size; numpy numbers and arrays become numbers and lists, dates
    and decimals become text. Lone surrogates, which models and programs write and no tokenizer reads, become �.

    Raises:
        TypeError, ValueError: a value in it is not valid JSON, such as NaN.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    return whole(text).encode()


def whole(value: Any) -> Any:
    """Return the value with lone surrogates in its strings, at any depth, replaced by �: JSON may hold them, tokenizers
    may not."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {whole(key): whole(inner) for key, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list) else value


def strict_json(
    text: str | bytes, pairs: Callable[[Sequence[tuple[str, Any]]], Any] | None = None, *, most: int = MAX_DEPTH
) -> Any:
    """Parse JSON from outside; `pairs` makes a value of an object's keys and values.

    Raises:
        ValueError: it is not JSON, is nested deeper than `most` levels, or contains NaN or a number beyond the largest
            one, both of which Python reads; or `pairs` raises it.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=pairs)
    except RecursionError as cause:
        raise ValueError(f"it is nested deeper than {most} levels") from cause
    require_depth(value, most)
    return value


def require_depth(value: Any, most: int = MAX_DEPTH) -> None:
    """Raises ValueError if the value is nested deeper."""
    level, depth = [value], 0
    while level:
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1
        if depth > most and level:
            raise ValueError(f"it is nested deeper than {most} levels")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def require_text(value: Any) -> None:
    """
    Raises:
        ValueError: a text in it holds half a surrogate pair, which no file takes, or it is nested too deeply.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise ValueError("a text holds half a surrogate pair") from cause
    except RecursionError as cause:
        raise ValueError("it is nested too deeply") from cause


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is beyond the largest number")
    return number


def shortened(text: str) -> str:
    """Return one line of at most `MAX_DETAIL` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL else f"{line[: MAX_DETAIL - 3]}..."


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, date | time | Decimal):  # in rows of data sets
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
