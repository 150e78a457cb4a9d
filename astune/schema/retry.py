"""Parsing of a busy server's Retry-After header."""

from __future__ import annotations

from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the response's `Retry-After` header; None if absent or a date."""
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
