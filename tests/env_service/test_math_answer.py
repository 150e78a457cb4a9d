"""Final answers: where a text states one, and which two are the same."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.scoring.math_answer import MAX_LENGTH, last_boxed, same_answer, stated_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{64}", "64"),
        (r"\boxed{\frac{1}{2}} indeed", r"\frac{1}{2}"),
        (r"\boxed{\text{a {nested} one}}", r"\text{a {nested} one}"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{1} and then \boxed{2", "1"),
        (r"\boxed{6", None),
        ("no box", None),
    ],
)
def test_the_last_closed_box_holds_the_answer(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"1, 2, 3 \boxed{64}", "64"),
        ("49 + 15 = 64\n#### 64", "64"),
        ("The answer is 42.", "42"),
        ("First 5.\n\nShe pays 9 * 2 = $18 a day.", "$18"),
        ("It is 3/4.", "3/4"),
        ("About 1,234.5 km", "1,234.5"),
        ("It grew by -7%", "-7%"),
        ("The answer is −5.", "-5"),
        ("The answer is –5.", "-5"),
        ("The answer is 3e8.", "3e8"),
        ("It is 7 trillion.", "7 trillion"),
        ("They need 2 dozen eggs.", "2 dozen"),
        ("It starts at 3 pm.", "3 pm"),
        ("That is 18km away.", "18"),
        ("It takes 18 minutes and no more.", "18"),
        ("It is **18**.", "18"),
        ("It is 2x.", None),
        ("It is 5!", None),
        ("It is 5 squared.", None),
        (r"It is 3\pi.", None),
        ("It is √2.", None),
        (r"It is \sqrt{2}.", None),
        ("It is x^2.", None),
        ("It is 1_000.", None),
        ("It takes 3–4 days.", None),
        ("It is 64 or 65.", None),
        (r"64, so \boxed{6", None),
        ("I do not know", None),
        ("", None),
        ("It is negative 5.", "-5"),
        ("So x = - 5", "-5"),
        (r"It is -\$5", "-$5"),
        ("- 18 apples are left.", "18"),
        ("Answer - 18", "18"),
        ("答案是-5。", "-5"),
        ("答案是负5", "-5"),
        ("答案是－5", "-5"),
        ("一共有12个苹果。", "12"),
        ("答案是 50％", "50%"),
        ("<answer>18</answer>", "18"),
        ("(18)", "18"),
        ("It is 18 a day, I think.", "18"),
        ("762 M&M's", "762"),
        (r"So $\angle A = 30^\circ$.", "30"),
        ("#### 2. Add them\n49 + 15 = 64", "64"),
        ("#### 64\nThat was it.", "64"),
        ("49\n####", None),
    ],
)
def test_an_answer_is_taken_only_where_the_text_commits_to_one(text, answer):
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    "number",
    [
        *("x + 5", "x-5", "y -5", "x*5", "x/5", "pi/5", "5/x", "5 + y", "5 - n", "5*x", "5·x", "is - 5", "x <= 5"),
        *("x > 5", "x != 5", r"x \le 5", "±5", "f(5)", "log 5", "ln(5)", "sin 5", "half of 5", "the root of 5"),
        *("not 5", "twice 5", r"\frac{\pi}{5}", r"\frac{x}{5}", r"-\frac{5}{x}", r"5\theta", r"5 \sqrt{x}", "5^n"),
        *("$5k", "$5M", "$5m", "$5 bn", "5K", "5i", "5a", "5θ", "5 k", "5½", "5⁴", "5 and a half", "5 thirds"),
        *(
            "5.000.000",
            "5‰",
            "5 mod n",
            "5 choose k",
            "5万",
            "5 亿元",
            "5千",
            "根号5",
            "5个半",
            "5多万",
            "5 ½",
            "log2(5)",
            "5 dozens",
            "5 millions",
            "5 lakh",
        ),
    ],
)
def test_a_number_that_something_beside_it_changes_is_not_taken_for_it(number):
    answer = stated_answer(f"It is {number}.")
    assert answer is None or not same_answer(answer, "5")


def test_lines_that_never_end_take_no_time():
    start = time.process_time()
    many = 50_000
    for line in ("not" + " " * many + "y 5", "<a" * many + "5", "5 and-" + "a-" * many, "^" + " " * many, "\\" * many):
        stated_answer(line)
        same_answer(line, "5")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"1,\!000", "1000"),
        (r"1\,234\,567", "1234567"),
        (r"30^\circ", "30"),
        (r"30^{\circ}\text{C}", "30"),
        (r"\frac1{2}", r"\frac{1}2"),
        (r"60 \text{ miles/hour}", "60"),
        ("18 a day", "18"),
        ("5hours", "5"),
        ("¥5", "5元"),
        ("5千克", "5"),
        ("５０％", "50%"),
        ("3 crore", "30,000,000"),
        ("2 dozens", "24"),
        ("1,000", "1000"),
        ("1,234,567", "1234567"),
        ("3.0", "3"),
        ("3.", "3"),
        ("03", "3"),
        ("0.5", "1/2"),
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac12", ".5"),
        (r"-\frac{3}{4}", "-0.75"),
        ("3 1/2", "3.5"),
        (r"3\frac{1}{2}", "7/2"),
        ("2/4", "1/2"),
        ("50%", "0.5"),
        (r"50\%", "50"),
        ("50 percent", "50%"),
        ("$18", "18"),
        (r"\$1{,}800", "1800"),
        ("18 dollars", "$18.00"),
        (r"64\text{ apples}", "64"),
        ("64 apples", "64"),
        ("5 cm^2", "5"),
        ("60 miles per hour", "60"),
        ("5km", "5"),
        ("2 million", "2,000,000"),
        ("3 hundred thousand", "300,000"),
        ("1e-05", "0.00001"),
        ("3E8 m", "300,000,000"),
        ("7 trillion", "7,000,000,000,000"),
        ("3 pm", "3"),
        ("3 p.m.", "3PM"),
        ("x = 5", "5"),
        ("−5", "-5"),
        ("+5", "5"),
        ("**7**", "7"),
        ("$64$", "64"),
        (r"\(64\)", "64"),
        ("64.", "64"),
        ("(1, 2)", "(1,2)"),
        ("Blue", "blue"),
    ],
)
def test_two_spellings_of_one_answer_are_equal(left, right):
    assert same_answer(left, right)
    assert same_answer(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("64", "65"),
        ("64", "-64"),
        ("3.33", "10/3"),
        ("1,00", "100"),
        ("1,2", "12"),
        ("3 4", "34"),
        ("3 4", "4"),
        ("64 or 65", "64"),
        ("49+15", "64"),
        ("0.25%", "25%"),
        ("0.5", "50"),
        ("1/0", "0"),
        ("5x", "5"),
        ("5 x", "5"),
        ("", "0"),
        ("", "64"),
        ("five", "5"),
        ("1e3", "1"),
        ("10:30", "10"),
        ("3 pm", "3 am"),
        ("3p.m.", "3 AM"),
        ("7 trillion", "7"),
        ("3 hundred thousand", "300"),
        ("2 pi", "2"),
        ("3 i", "3"),
        ("5 squared", "5"),
        ("5 factorial", "5"),
        ("5 k", "5"),
        ("5 a^2", "5"),
        ("5 a", "5"),
        ("5 thousandths", "5"),
        ("2 thirds", "2"),
        ("5 less than a number", "5"),
        ("5 log k", "5"),
        ("5万", "5"),
        ("1 2/x", "12/x"),
    ],
)
def test_two_answers_that_differ_are_not_equal(left, right):
    assert not same_answer(left, right)
    assert not same_answer(right, left)


@given(st.fractions(max_denominator=1000))
def test_a_number_equals_itself_however_written_and_no_other(value):
    plain = f"{value.numerator}/{value.denominator}"
    sign = "-" if value < 0 else ""
    latex = rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert same_answer(plain, latex)
    other = value + Fraction(1, 7)
    assert not same_answer(plain, f"{other.numerator}/{other.denominator}")


@given(st.integers())
def test_grouped_thousands_are_the_same_number(value):
    assert same_answer(f"{value:,}", str(value)) == (len(f"{value:,}") <= MAX_LENGTH)


@given(st.text())
def test_no_text_breaks_it(text):
    stated_answer(text)
    same_answer(text, "64")


def test_boxes_that_a_model_never_closes_take_no_time():
    start = time.process_time()
    assert last_boxed("{" + r"\boxed{7}" + r"\boxed{" * 20_000) == "7"
    assert time.process_time() - start < 5


def test_a_number_of_any_length_is_only_text():
    assert not same_answer("9" * 10_000, "64")
    assert stated_answer("9" * 10_000) is not None
