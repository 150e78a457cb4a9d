"""The number of examples of a property: all of them in `make test`, a quarter in `make check`."""

from __future__ import annotations

import os

FAST_TIER = "ASTUNE_TESTS_FAST_TIER"
"""Set while slow tests are left out."""
_LEAST = 8


def examples(number: int) -> int:
    """Return how many of so many examples are drawn now."""
    return max(_LEAST, number // 4) if FAST_TIER in os.environ else number
