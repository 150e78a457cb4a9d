"""Which answers stand in their own question."""

from __future__ import annotations

import pytest

from astune.data_generator.draft import Draft
from astune.data_generator.filters import no_leak


@pytest.mark.parametrize(
    ("question", "answer", "leaks"),
    [
        ("Which city is Paris?", "Paris.", True),
        ("What is the New York of the west?", "new-york", True),
        ("Which option runs the tests with coverage?", "--with", False),
        ("Does --with or --without run the tests?", "--with", True),
        ("Which language came after C?", "C++", False),
        ("Is C++ older than Rust?", "c++", True),
        ("Which variable names the home folder?", "$HOME", False),
    ],
)
async def test_an_answer_with_marks_stands_in_its_question_with_its_marks_alone(
    question: str, answer: str, leaks: bool
) -> None:
    draft = Draft(question, answer, "group")
    assert (await no_leak(draft) == "the answer stands in the question") is leaks
