"""JSON from clients: values that could not be stored or forwarded are refused on arrival."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 100


def read_json(body: bytes) -> Any:
    """Return the value in `body`.

    Raises:
        ValueError: it is not JSON, is nested deeper than `MAX_DEPTH`, or contains NaN, a number beyond the
            largest one or a lone surrogate.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as cause:
        raise ValueError(_TOO_DEEP) from cause
    _check_depth(value)
    if b"\\ud" in body.lower():
        _check_text(value)
    return value


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is beyond the largest number")
    return number


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        level = [inner for outer in level for inner in _inside(outer)]
        depth += 1
        if depth > MAX_DEPTH and level:
            raise ValueError(_TOO_DEEP)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise ValueError("a text holds half a surrogate pair") from cause
