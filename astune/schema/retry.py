"""Retry-After of a busy server."""

from __future__ import annotations

from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer's `Retry-After` asks for; None without one, or where it is a date."""
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
