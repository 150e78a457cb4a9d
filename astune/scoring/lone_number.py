r"""The one number that ends a text without a box, such as 18 of "She pays 9 * 2 = $18 a day."

It is taken only where nothing beside it makes another number of it: "x + 3", "5/x", "$5k" and `\sqrt{5}` have none.
"""

from __future__ import annotations

import re

NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
EXPONENT = r"[eE][-+]?\d{1,3}(?!\w)"
SCALES = {
    "hundred": 100,
    "thousand": 1_000,
    "million": 1_000_000,
    "billion": 1_000_000_000,
    "trillion": 1_000_000_000_000,
    "dozen": 12,
    "lakh": 100_000,
    "crore": 10_000_000,
}
UNITS = r"(?:(?i:mm|cm|km|kg|mg|ml|ft|in|lb|oz|hr|am|pm|st|nd|rd|th)|[mghslL])(?![A-Za-z])"
"""Units of one or two letters; other letters right behind a number are variables, or scales as in 5k."""
PARTS = "halves|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths|thousandths|millionths"
CHINESE_SCALE = r"(?:[十百万亿兆又点成折]|千(?![克米瓦]))"

_CHARACTERS = str.maketrans("−–‐‑﹣－＋％，．／＄￥", "-----" + "-+%,./$¥") | dict.fromkeys((0x200B, 0x2060, 0xFEFF))
_MINUS_WORD = re.compile(r"(?:\b(?:minus|negative)\s+|负)(?=[$€£¥]?\.?\d)", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LONE = re.compile(rf"(?<![A-Za-z0-9_.])[-+]?[$€£¥]?{NUMBER}(?:{EXPONENT})?(?:\s*/\s*\d+)?(?:\s*\\?%)?")
_SUFFIX = re.compile(rf"(?:\s+(?:(?:{'|'.join(SCALES)})s?|percent)\b)+|\s*[ap](?:m\b|\.\s?m\b)", re.IGNORECASE)
"""Words behind a number that belong to it: `7 trillion`, `3 pm`."""
_COMMAND = re.compile(
    r"\\(?!(?:(?:text|math)\w*|mbox|boxed|left|right|q?quad|approx|circ|therefore|implies|\w*[Rr]ightarrow)(?![A-Za-z]))"
    r"[A-Za-z]+"
)
r"""A LaTeX command that computes: `\frac`, `\pi`, `\le`."""
_BEFORE = re.compile(
    r"""(?: [√^/+×÷·±] | [\w)}|](?:[<>≤≥≠*]|\s+[<>≤≥≠*]\s+) | [a-z0-9]\( | [a-z0-9_)}]-
        | (?:\b(?:is|are|was|be|equals?)|[:(]|(?<![a-z])[b-z]|[)}\]])\s*-\s
        | \b(?:plus|times|over|not|log|ln|sin|cos|tan|exp|sqrt|twice|(?:root|square|cube|half|third|quarter)\s+of)\s*\(?
        | n't | 根号 | 不是
    )\s*[{(]?\s*$""",
    re.VERBOSE | re.IGNORECASE,
)
"""Text before a number that makes another one of it: `x +`, `log`, `half of`."""
_BEFORE_A_SIGN = re.compile(r"(?:(?<![a-z])[b-z]\s*|[)}\]|])$", re.IGNORECASE)
"""Text before `-5` that subtracts it from something."""
_BEHIND = re.compile(
    rf"""\s*[!π√²³¹⁰-⁹¼-¾⅐-⅞\u0370-\u03ff_‰] | \^(?!\s*\{{?\s*\\circ) | \.\d | \s*(?:{CHINESE_SCALE}|多|个?半)
    | (?!{UNITS})[A-Za-z]{{1,2}}(?![A-Za-z]) | \s+[bBkKMTceijnqrtxyz](?![\w&])
    | \s*[*/×÷·+<>≤≥≠]\s*(?:[A-Za-z](?![A-Za-z])|[\\({{]) | \s*-\s*(?:[B-HJ-Zb-z](?![A-Za-z])|[\\({{])
    | \s+(?:pi|squared|cubed|factorial|mod|modulo|choose|bn|mn|mil|{PARTS})\b
    | [\s-]+and[\s-]+(?:\w+[\s-]+)?(?:half|(?:quarter|third|fourth|fifth|sixth|eighth|tenth)s?)\b""",
    re.VERBOSE,
)
"""Text behind a number that does: `5!`, `2x`, `3 pi`, `5/x`, `5 and a half`, `5万`."""
_MILLIONS = re.compile(rf"[$€£¥]{NUMBER}m(?!\w)")


def lone_number(line: str) -> str | None:
    """Return the only number of a line, or of what follows its last `=`, with the words that belong to it.

    "The answer is −5."          -> -5      whichever character or word its minus is
    "It is 7 trillion."          -> 7 trillion
    "It is 64 or 65."            -> None    two numbers, and none is guessed
    "It is 5 and a half."        -> None    another number than 5
    """
    line = " ".join(plain_signs(line).replace(r"\$", "$").split())
    line = _TAG.sub(" ", _MINUS_WORD.sub("-", line))
    head, equals, text = line.rpartition("=")
    if equals:
        text = re.sub(r"^\s*([-+])\s+", r"\1", text)
    found = list(_LONE.finditer(text))
    if len(found) != 1 or head.endswith(("!", "<", ">")) or _COMMAND.search(text) or _MILLIONS.search(text):
        return None
    number = found[0][0].strip().rstrip(".")
    before, behind = text[: found[0].start()], text[found[0].end() :]
    if _BEFORE.search(before) or _BEHIND.match(behind) or (number[0] in "+-" and _BEFORE_A_SIGN.search(before)):
        return None
    suffix = _SUFFIX.match(behind)
    return number + (suffix[0] if suffix else "")


def plain_signs(text: str) -> str:
    """Return the text with ASCII's minus, percent sign and the like, and without characters of no width."""
    return text.translate(_CHARACTERS)
