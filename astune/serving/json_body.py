"""JSON from clients: values that could not be stored or forwarded are refused on arrival."""

from __future__ import annotations

import json
import math
from typing import Any

from astune.schema.plain_json import MAX_DEPTH, require_depth


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
    require_depth(value)
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


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise ValueError("a text holds half a surrogate pair") from cause
