"""JSON and short lines of whatever programs and models produce, for channels between processes."""

from __future__ import annotations

import json
from datetime import date, time
from decimal import Decimal
from typing import Any

MAX_DETAIL = 500
"""Characters of an error's text that are passed on."""


def encoded(value: Any) -> bytes:
    """JSON without blanks, whole numbers of any size among it; numpy's numbers and arrays are numbers and lists, dates
    and decimals are text. Half a character, which models and programs write and no tokenizer reads, becomes �.

    Raises:
        TypeError, ValueError: something in it has no place in JSON, as NaN.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    return whole(text).encode()


def whole(value: Any) -> Any:
    """The value with half characters in its texts, at any depth, as �: JSON may hold them, and no tokenizer does."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {whole(key): whole(inner) for key, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list) else value


def shortened(text: str) -> str:
    """One line of at most `MAX_DETAIL` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL else f"{line[: MAX_DETAIL - 3]}..."


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, date | time | Decimal):  # in rows of data sets
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
