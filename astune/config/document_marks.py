"""The marks around a whole YAML document, from `---` to `...`: a text that has only the first is cut off."""

from __future__ import annotations

_BEGIN, _END = "---\n", "...\n"


def marked(text: str) -> str:
    """Return YAML whose end can be recognised."""
    return f"{_BEGIN}{text}{_END}"


def without_marks(text: str) -> str:
    """Return the YAML between the marks; all of a text that has none."""
    return text.removeprefix(_BEGIN).removesuffix(_END) if text.startswith(_BEGIN) else text


def is_cut_off(text: str) -> bool:
    """Return whether the text has the first mark and lacks the last; of a text without marks nothing is known."""
    return text.startswith(_BEGIN) and not text.endswith(f"\n{_END}")
