"""JSON from clients: values that could not be stored or forwarded are refused on arrival."""

from __future__ import annotations

from typing import Any

from astune.schema.plain_json import require_text, strict_json


def read_json(body: bytes) -> Any:
    """Return the value in `body`.

    Raises:
        ValueError: it is not JSON, is nested deeper than `MAX_DEPTH`, or contains NaN, a number beyond the
            largest one or a lone surrogate.
    """
    value = strict_json(body)
    if b"\\ud" in body.lower():
        require_text(value)
    return value
