"""Personal data in texts, replaced by what kind it was before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from astune.schema import ConfigError

PATTERNS = {
    "email": r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+",
    "key": r"\b(?:sk|pk|ghp|gho|xoxb|xoxp|AKIA|AIza|hf)[-_]?[A-Za-z0-9_-]{16,}|\beyJ[\w-]{8,2048}+\.[\w-]{8,}\.[\w-]*",
    "phone": r"(?<![\w.+-])(?:\+\d[\d ()-]{7,16}\d|\(\d{2,5}\)[ -]?\d{3,4}[ -]?\d{3,4}(?:-\d{1,4})?"
    r"|\d{2,4}[ -]\d{3,4}[ -]\d{4}|1[3-9]\d{9})(?!\w|\.\d)",
}
"""Kinds of personal data masked by default. A telephone number has a plus, parentheses or two separators, or is a
Chinese mobile one; other digits are ordinary numbers. The time is linear in the text: a message may be a picture in
base64."""


class Masker:
    """Replaces what its patterns find by `[email]`, `[key]`, `[phone]` and so on. Raises ConfigError if one is no
    regular expression.

    Args:
        more: patterns of the user's own by name; one of a known name replaces that, and an empty one switches it off.
    """

    def __init__(self, more: Mapping[str, str] | None = None) -> None:
        self.own = dict(more or {})
        self._patterns: list[tuple[str, re.Pattern[str]]] = []
        for name, pattern in (PATTERNS | self.own).items():
            if not pattern:
                continue
            try:
                self._patterns.append((f"[{name}]", re.compile(pattern)))
            except re.error as cause:
                raise ConfigError(f"the mask {name} is {pattern!r}: {cause}", hint="see Python's `re`") from cause

    def text(self, text: str) -> str:
        for name, pattern in self._patterns:
            text = pattern.sub(name, text)
        return text

    def all_of(self, value: Any) -> Any:
        """The value with every text in it masked, names of keys left as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.all_of(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.all_of(each) for each in value]
        return value
