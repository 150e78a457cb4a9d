r"""Final answers in mathematics: where a text states one, and whether two are the same number.

Exact: numbers are fractions, never floats, so `0.5`, `1/2`, `\frac{1}{2}` and `50%` are one answer and `3.33` is
not `10/3`. What is no number is compared as text. This is no algebra system: `2x` and `x+x` differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 200
"""Longer text is compared as text; no final answer in numbers is."""

_BRACE = re.compile(r"[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)"
_BRACED = r"\{\s*([-+]?\s*" + _NUMBER + r")\s*\}"
_WHOLE = re.compile(rf"([-+])?\s*(?:({_NUMBER})\s+)?({_NUMBER})(?:\s*/\s*({_NUMBER}))?")
_LATEX_FRACTION = re.compile(rf"([-+])?\s*({_NUMBER})?\s*\\frac\s*{_BRACED}\s*{_BRACED}")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"^(.*?[\d}%])\s+([A-Za-z][A-Za-z. ]*?)(?:\s*(?:\^\s*\{?[23]\}?|[²³]))?$", re.DOTALL)
_ATTACHED_UNIT = re.compile(r"^(.*\d)\s*(?:mm|cm|km|kg|mg|ml|mph|kph|am|pm|°)$", re.IGNORECASE)
_VARIABLE = re.compile(r"^[A-Za-z]\s*=\s*")
_EXPONENT = r"[eE][-+]?\d{1,3}(?!\w)"
_SCIENTIFIC = re.compile(rf"[-+]?\s*(?:\d+\.?\d*|\.\d+){_EXPONENT}")
_LONE_NUMBER = re.compile(rf"(?<![\w.])[-+−–]?[$€£]?{_NUMBER}(?:{_EXPONENT})?(?:\s*/\s*\d+)?(?:\s*%)?")
_UNDER_A_SIGN = re.compile(r"(?:[√^]|sqrt)\s*[{(]?$")
_MADE_ANOTHER = re.compile(
    r"[!^π√²³]|\s?\\(?:pi|sqrt|cdot|times)(?![A-Za-z])|\s*[xyzn](?!\w)|[exyzn_]?[-+]?\d"
    r"|\s+(?:pi|squared|cubed|factorial)\b"
)
"""Text behind a number that changes its value: `5!`, `2x`, `3 pi`."""
_HALF_OF_DAY = re.compile(r"\d\s*([ap])\.?\s?m\b", re.IGNORECASE)

_SCALES = {
    "hundred": 100,
    "thousand": 1_000,
    "million": 1_000_000,
    "billion": 1_000_000_000,
    "trillion": 1_000_000_000_000,
    "dozen": 12,
}
_SUFFIX = re.compile(rf"(?:\s+(?:{'|'.join(_SCALES)}|percent)\b)+|\s*[ap](?:m\b|\.\s?m\b)", re.IGNORECASE)
"""Words behind a number that belong to it: `7 trillion`, `3 pm`."""
_NO_UNITS = {"and", "or", "to", "plus", "minus", "times", "over", "by", "of", "x", "y", "z", "n", "if", "not"} | {
    "pi", "e", "i", "sqrt", "squared", "cubed", "factorial", "mod", "base"
}  # fmt: skip
"""Words behind a number that make it another one."""


@dataclass(frozen=True, slots=True)
class _Number:
    value: Fraction
    percent: bool = False
    half_of_day: str = ""
    """`a` or `p` of a time in the morning or in the afternoon."""


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}` of `text`, with its nested braces; None if there is none.

    An answer that was cut off inside its box has not been given.
    """
    boxes = {match.end() - 1 for match in _BOX.finditer(text)}
    opened: list[int] = []
    last = -1, 0
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened and (start := opened.pop()) in boxes:
            last = max(last, (start, brace.start()))
    return text[last[0] + 1 : last[1]].strip() if last[0] >= 0 else None


def stated_answer(text: str) -> str | None:
    r"""The answer that `text` commits to: its last box, what follows `####`, or the one number that ends it.

    "so \boxed{64}"                           -> 64
    "49 + 15 = 64\n#### 64"                   -> 64
    "She pays 9 * 2 = $18 a day."             -> $18     the only number after the last line's last `=`
    "It is −5."                               -> -5      whichever character its minus is
    "It is 64 or 65."                         -> None    two numbers: no commitment, and none is guessed
    "It is 7 trillion."                       -> 7 trillion
    "It is 2x."                               -> None    another number than 2
    "so \boxed{6"                             -> None    cut off
    """
    boxed = last_boxed(text)
    if boxed is not None or _BOX.search(text):
        return boxed
    if "####" in text:
        return after_marker(text) or None
    lines = text.strip().splitlines()
    if not lines:
        return None
    return _lone_number(lines[-1].rpartition("=")[2])


def _lone_number(text: str) -> str | None:
    """Return the only number of the text, with what belongs to it; None where something makes another one of it."""
    found = list(_LONE_NUMBER.finditer(text))
    if len(found) != 1 or _UNDER_A_SIGN.search(text[: found[0].start()]) or _MADE_ANOTHER.match(text[found[0].end() :]):
        return None
    number = _with_plain_minus(found[0][0]).strip().rstrip(".")
    behind = _SUFFIX.match(text, found[0].end())
    return number + (behind[0] if behind else "")


def after_marker(text: str) -> str:
    """Return the text after the last `####` on its line, as GSM8K writes the reference; all of `text` without one."""
    if "####" not in text:
        return text.strip()
    return text.rpartition("####")[2].strip().partition("\n")[0].strip()


def same_answer(answer: str, reference: str) -> bool:
    """Return whether two answers are equal as numbers, or, where either is none, as text.

    `25%` equals `0.25`, and equals `25`, for a question that asks for a percentage is answered either way. `3 pm`
    equals `3`, and not `3 am`.
    """
    left, right = _parse(answer), _parse(reference)
    if left is None and right is None:
        return _letters(answer) == _letters(reference)
    if left is None or right is None or {left.half_of_day, right.half_of_day} == {"a", "p"}:
        return False
    if left.percent == right.percent:
        return left.value == right.value
    return left.value == right.value or (
        left.value / 100 == right.value if left.percent else right.value / 100 == left.value
    )


def is_number(text: str) -> bool:
    return _parse(text) is not None


def _with_plain_minus(text: str) -> str:
    return text.replace("−", "-").replace("–", "-")


def _clean(text: str) -> str:
    """Remove what carries no value: mathematical delimiters, spacing, currency, emphasis, a final stop."""
    text = _with_plain_minus(text.strip().strip("*"))
    text = _WRAPPED.sub(r" \1", text)
    text = re.sub(r"\\[()\[\]!,;: ]|\\(?:left|right|quad|displaystyle)\b", " ", text.replace("{,}", ","))
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text.replace("\\%", "%"))
    text = re.sub(r"\\\$|[$€£]|\bUSD\b", "", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    return _VARIABLE.sub("", " ".join(text.split()).rstrip(".").strip())


def _letters(text: str) -> str:
    return _clean(text).replace(" ", "").casefold()


def _parse(text: str) -> _Number | None:
    if len(text) > MAX_LENGTH:
        return None
    text = _clean(text)
    scale, half = Fraction(1), _HALF_OF_DAY.search(text)
    unit = _UNIT.match(text)
    if unit is not None:
        words = unit[2].lower().replace(".", " ").split()
        while words and words[0] in _SCALES:  # three hundred thousand
            scale *= _SCALES[words.pop(0)]
        if words[:1] == ["percent"]:
            return _number(unit[1] + "%", scale)
        if len(words) > 4 or _NO_UNITS & set(words):
            return None
        text = unit[1]
    attached = _ATTACHED_UNIT.match(text)
    return _number(attached[1] if attached else text, scale, half[1].lower() if half else "")


def _number(text: str, scale: Fraction, half_of_day: str = "") -> _Number | None:
    percent = text.endswith("%")
    text = text.rstrip("%").strip()
    value = _fraction(text)
    return None if value is None else _Number(value * scale, percent, half_of_day)


def _fraction(text: str) -> Fraction | None:
    if _SCIENTIFIC.fullmatch(text):
        return Fraction("".join(text.split()))
    match = _LATEX_FRACTION.fullmatch(text) or _WHOLE.fullmatch(text)
    if match is None:
        return None
    sign, whole, above, below = (re.sub(r"[,\s]", "", group) if group else None for group in match.groups())
    if above is None or (whole is not None and below is None):
        return None  # "3 4" is two numbers
    denominator = Fraction(below) if below else Fraction(1)
    if denominator == 0:
        return None
    value = Fraction(above) / denominator + (Fraction(whole) if whole else 0)
    return -value if sign == "-" else value
