"""What of a test runs in `make check` and what in `make test` alone: examples of a property, and parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

FAST_TIER = "ASTUNE_TESTS_FAST_TIER"
"""Set while slow tests are left out."""
_LEAST = 8


def examples(number: int) -> int:
    """Return how many of so many examples are drawn now: a quarter of them in `make check`."""
    return max(_LEAST, number // 4) if FAST_TIER in os.environ else number


def some(values: Iterable[Any], number: int) -> list[Any]:
    """Return all parameters; all but so many of them, evenly spread and with the first, are slow."""
    given = list(values)
    fast = {round(n * len(given) / number) for n in range(number)}
    return [value if n in fast else _slow(value) for n, value in enumerate(given)]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
