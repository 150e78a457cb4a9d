"""Making untrusted text safe to print: a model, a user's code or a file of a run must not control a terminal."""

from __future__ import annotations

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


def visible(text: str) -> str:
    """Return the text with control characters escaped: C0 except tab and line end, C1, and bidi overrides."""
    return text.translate(_CONTROLS)
