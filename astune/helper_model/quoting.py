"""Text that a model or a user wrote, as data in a question: invisible characters are escaped, and long texts cut."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_LONGEST = 16_000
_INVISIBLE = frozenset({"Cf", "Cc", "Co", "Cs", "Cn"})
"""Unicode categories of invisible characters: formats, controls, private use, surrogates, unassigned."""


def quoted(text: str, longest: int = _LONGEST) -> str:
    r"""The text as a helper model may read it.

        "ignore\u200b this"    becomes    "ignore\\u200b this"

    Args:
        longest: characters that are kept; of a longer text the first third and the end stay, and a line between says
            how many are missing.
    """
    if len(text) > longest:
        head = longest // 3
        missing = f"\n[... {len(text) - longest:,} characters left out ...]\n"
        text = text[:head] + missing + text[len(text) - (longest - head) :]
    return "".join(_spelled(character) for character in text)


def data(**values: Any) -> str:
    """A JSON object of what a question is about; texts in it are `quoted`, so that none of them can end it."""
    return json.dumps({name: _quoted_in(value) for name, value in values.items()}, ensure_ascii=False)


def _quoted_in(value: Any) -> Any:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return {quoted(str(name)): _quoted_in(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted_in(each) for each in value]
    return value


def _spelled(character: str) -> str:
    if character in "\n\t\r" or unicodedata.category(character) not in _INVISIBLE:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
