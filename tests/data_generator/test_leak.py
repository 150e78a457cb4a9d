"""Which answers stand in their own question, and which quotes in their passage."""

from __future__ import annotations

import pytest

from astune.data_generator.draft import Draft
from astune.data_generator.filters import has_evidence, no_leak
from astune.data_generator.passages import Passage


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
        ("塔有三百米高吗？", "三百米", True),
        ("塔有多高？", "三百米", False),
        ("天空是什么颜色？", "是", False),
    ],
)
async def test_an_answer_with_marks_stands_in_its_question_with_its_marks_alone(
    question: str, answer: str, leaks: bool
) -> None:
    draft = Draft(question, answer, "group")
    assert (await no_leak(draft) == "the answer stands in the question") is leaks


@pytest.mark.parametrize(
    ("quote", "stands"), [("300 metres", True), ("00 met", False), ("高三百米", True), ("高二百米", False)]
)
async def test_a_quote_is_whole_words_of_its_passage(quote: str, stands: bool) -> None:
    passage = Passage("tower.md", (), "The tower is 300 metres tall. 塔高三百米。")
    draft = Draft("How tall is it?", "300 metres", "group", passages=[passage], evidence=[quote])
    assert (await has_evidence(draft) == "what is quoted does not stand in the passage") is not stands
