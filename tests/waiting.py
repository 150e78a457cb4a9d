"""Waiting for a named condition, where there is no event to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from subprocess import Popen
from typing import Any, TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    what: str,
    timeout_s: float = 20.0,
    *,
    process: Popen[Any] | None = None,
    every_s: float = 0.01,
) -> T:
    """The condition's first true value; fails with `what` when it takes too long or `process` ends before it."""
    give_up = time.monotonic() + timeout_s
    while not (value := condition()):
        assert process is None or process.poll() is None, f"ended before {what}: {process.communicate()}"
        assert time.monotonic() < give_up, f"waited {timeout_s:g} s for {what}"
        time.sleep(every_s)
    return value
