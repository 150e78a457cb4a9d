"""Common prefixes of texts or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def common_beginning(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Number of leading elements that are the same."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))
