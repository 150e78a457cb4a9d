"""Exact arithmetic on text: `49 + 15`, `(3.5 - 1) * 2`, `10 / 4`. A small parser, never `eval`.

expression = term   { ("+" | "-") term }
term       = factor { ("*" | "/") factor }
factor     = ("+" | "-") factor | "(" expression ")" | number
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 200
"""Longer text is no calculation; also bounds the parser's recursion and the size of a result."""

_TOKEN = re.compile(r"\s*(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|[-+*/()])")
_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-", "–": "-"})


class CalculationError(ValueError):
    """The text is no calculation, or it has no result; the message is short enough for an agent to read."""


def calculate(text: str) -> Fraction:
    """The exact value of `text`.

    Raises:
        CalculationError: it cannot be read, is too long, or divides by zero.
    """
    return _Parser(text).parse()


def format_number(value: Fraction) -> str:
    """Whole numbers as they are, others as decimals with up to six digits: `64`, `2.5`, `0.333333`."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(round(value, 6)):.6f}".rstrip("0").rstrip(".")


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CalculationError(f"longer than {MAX_LENGTH} characters")
        self._tokens: list[str] = []
        text = text.strip().translate(_SPELLINGS)
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise CalculationError(f"cannot read {text[position : position + 10]!r}")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0

    def parse(self) -> Fraction:
        value = self._expression()
        if self._peek() is not None:
            raise CalculationError(f"did not expect {self._peek()!r}")
        return value

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise CalculationError("a number is missing")
        self._next += 1
        return token

    def _expression(self) -> Fraction:
        value = self._term()
        while self._peek() in ("+", "-"):
            value = value + self._term() if self._take() == "+" else value - self._term()
        return value

    def _term(self) -> Fraction:
        value = self._factor()
        while self._peek() in ("*", "/"):
            if self._take() == "*":
                value *= self._factor()
                continue
            divisor = self._factor()
            if divisor == 0:
                raise CalculationError("division by zero")
            value /= divisor
        return value

    def _factor(self) -> Fraction:
        token = self._take()
        if token in "+-":
            return self._factor() if token == "+" else -self._factor()
        if token == "(":
            value = self._expression()
            if self._take() != ")":
                raise CalculationError("a closing parenthesis is missing")
            return value
        if token in "*/)":
            raise CalculationError(f"did not expect {token!r}")
        return Fraction(token.replace(",", ""))
