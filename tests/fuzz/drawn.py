"""How many inputs are drawn, and from which seed: `make fuzz N=1000 SEED=7`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, seed, settings

N = int(os.environ.get("FUZZ_EPISODES", "170"))
"""Inputs of each kind."""
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ANSWERS_WITHIN_S = 20.0
Test = TypeVar("Test", bound=Callable[..., None])


def fuzzed(test: Test, n: int = N) -> Test:
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    checks.append(HealthCheck.filter_too_much)
    drawn = settings(max_examples=n, deadline=None, database=None, suppress_health_check=checks)
    return seed(SEED)(drawn(test))
