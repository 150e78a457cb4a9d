r"""Final answers in mathematics: where a text states one, and whether two are the same number.

Exact: numbers are fractions, never floats, so `0.5`, `1/2`, `\frac{1}{2}` and `50%` are one answer and `3.33` is
not `10/3`. What is no number is compared as text. This is no algebra system: `2x` and `x+x` differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from astune.scoring.lone_number import (
    CHINESE_SCALE,
    EXPONENT,
    NUMBER,
    PARTS,
    SCALES,
    UNITS,
    lone_number,
    plain_signs,
)

MAX_LENGTH = 200
"""Longer text is compared as text; no final answer in numbers is."""

_BRACE = re.compile(r"[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACED = r"\{\s*([-+]?\s*" + NUMBER + r")\s*\}"
_WHOLE = re.compile(rf"([-+])?\s*(?:({NUMBER})\s+)?({NUMBER})(?:\s*/\s*({NUMBER}))?")
_LATEX_FRACTION = re.compile(rf"([-+])?\s*({NUMBER})?\s*\\frac\s*{_BRACED}\s*{_BRACED}")
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UNIT = re.compile(
    rf"^(.*?[\d}}%])(?:\s+|(?={UNITS})|(?=[A-Za-z]{{3}}))([A-Za-z][A-Za-z. /]*?)(?:\s*(?:\^\s*\{{?[23]\}}?|[²³]))?$",
    re.DOTALL,
)
_CHINESE_UNIT = re.compile(rf"^(.*\d)\s*(?!{CHINESE_SCALE})[\u4e00-\u9fff]{{1,4}}$")
_VARIABLE = re.compile(r"^[A-Za-z]\s*=\s*")
_SCIENTIFIC = re.compile(rf"[-+]?\s*(?:\d+\.?\d*|\.\d+){EXPONENT}")
_HALF_OF_DAY = re.compile(r"\d\s*([ap])\.?\s?m\b", re.IGNORECASE)
_NO_UNITS = {
    *("and", "or", "to", "plus", "minus", "times", "over", "by", "of", "if", "not", "than", "below", "choose", "mod"),
    *("pi", "sqrt", "squared", "cubed", "factorial", "base", "log", "ln", "sin", "cos", "tan"),
    *PARTS.split("|"),
    *"abcdefijknopqrtuvwxyzBKMTXYZ",
}
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
    lines = text.strip().splitlines()
    marked = after_marker(text) if "####" in text else ""
    if marked and (is_number(marked) or "####" in lines[-1]):  # else it is a heading of Markdown
        return marked
    return lone_number(lines[-1]) if lines and lines[-1] != "####" else None


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


def _clean(text: str) -> str:
    """Remove what carries no value: mathematical delimiters, spacing, currency, degrees, emphasis, a final stop."""
    text = plain_signs(" ".join(text.split()).strip("*"))
    text = re.sub(r"(?<=\d)\\[,;: ](?=\d{3})", ",", text.replace(r"\!", "").replace("{,}", ","))
    text = _WRAPPED.sub(r" \1", text)
    text = re.sub(r"\\[()\[\],;: ]|~|\\(?:left|right|quad|displaystyle)\b", " ", text)
    text = re.sub(r"(?:°|\^\s*\{?\s*\\circ\s*\}?)\s*[CF]?(?![A-Za-z])", " ", text.replace("\\%", "%"))
    text = re.sub(r"\\\$|[$€£¥]|\bUSD\b", "", text)
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"(\\frac ?\{[^{}]*\}) ?(\d)", r"\1{\2}", re.sub(r"\\frac ?(\d)", r"\\frac{\1}", text))
    return _VARIABLE.sub("", " ".join(text.split()).rstrip(".").strip())


def _letters(text: str) -> str:
    """Return the text without case, and without spaces but those that part two numbers."""
    return re.sub(r"(?<!\d) | (?!\d)", "", _clean(text)).casefold()


def _parse(text: str) -> _Number | None:
    if len(text) > MAX_LENGTH:
        return None
    text = _clean(text)
    scale, half = Fraction(1), _HALF_OF_DAY.search(text)
    unit = _UNIT.match(text)
    if unit is not None:
        found = re.split(r"(?:\ba\s+(?=\w{2})|[\s./])+", unit[2])
        words = [word if len(word) == 1 else word.lower() for word in found if word]
        while words and (size := SCALES.get(words[0].removesuffix("s"))):  # three hundred thousand
            scale *= size
            words = words[1:]
        if words[:1] == ["percent"]:
            return _number(unit[1] + "%", scale)
        if len(words) > 4 or (_NO_UNITS & set(words) and half is None):
            return None
        text = unit[1]
    chinese = _CHINESE_UNIT.match(text)
    return _number(chinese[1] if chinese else text, scale, half[1].lower() if half else "")


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
