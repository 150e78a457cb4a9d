"""The calculator's parser: exact, safe, and clear about what it cannot read."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.scoring.arithmetic import MAX_LENGTH, CalculationError, calculate, format_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("49+15", "64"),
        (" 49 + 15 ", "64"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("10-4-3", "3"),
        ("24/4/2", "3"),
        ("-3+5", "2"),
        ("2*-3", "-6"),
        ("10/4", "2.5"),
        ("1/3", "0.333333"),
        ("0.1+0.2", "0.3"),
        ("1,200+34", "1234"),
        ("6×7", "42"),
        ("84÷2", "42"),
        ("50−8", "42"),
        (".5*2", "1"),
        ("0-1/4", "-0.25"),
    ],
)
def test_a_calculation_has_its_exact_value(text, value):
    assert format_number(calculate(text)) == value


@pytest.mark.parametrize(
    "text",
    ["", "49+", "+", "(1+2", "1+2)", "2**3", "3 4", "1/0", "x+1", "__import__('os')", "1_000", "9" * (MAX_LENGTH + 1)],
)
def test_what_is_no_calculation_is_refused(text):
    with pytest.raises(CalculationError):
        calculate(text)


def test_deep_nesting_is_bounded_by_the_length():
    depth = MAX_LENGTH // 2 - 1
    assert calculate("(" * depth + "1" + ")" * depth) == 1


NUMBERS = st.integers(min_value=0, max_value=10_000)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_it_agrees_with_exact_fractions(a, b, c):
    assert calculate(f"({a}-{b})*{c}") == (a - b) * c
    assert calculate(f"{a}/{b + 1}+{c}") == Fraction(a, b + 1) + c
