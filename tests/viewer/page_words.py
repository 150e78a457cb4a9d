"""What the page's tests say often."""

from __future__ import annotations

import time
from typing import Any


def overrides(values: dict[str, object]) -> list[str]:
    """The command line's words for settings."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def until(page: Any, question: str, *, timeout_s: float = 30) -> None:
    """Waits until an expression is true in the page; Playwright's own way needs `eval`, which the policy forbids."""
    deadline = time.monotonic() + timeout_s
    while not page.evaluate(question):
        assert time.monotonic() < deadline, f"{question} did not become true"
        page.wait_for_timeout(50)
