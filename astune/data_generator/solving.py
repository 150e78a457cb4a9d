"""Questions answered again by the helper model, and whether two answers are the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from astune.data_generator.passages import Passage
from astune.helper_model import Form, HelperModel, data
from astune.schema import gathered
from astune.scoring.math_answer import is_number, same_answer

UNSPACED = r"\u3040-\u30ff\u3400-\u9fff"
"""Letters of scripts without spaces between words, as a part of a regular expression's class."""
_ARTICLES = frozenset({"a", "an", "the"})
_QUOTES = "`'\"“”‘’«»*"


class _Answer(Form):
    answerable: bool
    answer: str


class _Same(Form):
    same: bool


class Solver:
    """Answers questions `tries` times, each try by itself."""

    def __init__(self, model: HelperModel, tries: int) -> None:
        self._model = model
        self._tries = tries

    async def answers(self, question: str, passages: Sequence[Passage], *, tries: int | None = None) -> list[str]:
        """The answers from the passages, or from what the model knows where there are none. Tries that find the
        question unanswerable are left out."""
        n = tries or self._tries
        instruction = self._model.prompts.get("data_answer" if passages else "data_answer_closed")
        shown = {"passages": [each.text for each in passages]} if passages else {}
        asked = data(question=question, **shown)
        found = await gathered(
            *(self._model.ask_json(instruction, asked, _Answer, number=number) for number in range(n))
        )
        return [each.answer for each in found if each.answerable and each.answer.strip()]

    async def agreeing(self, answers: Sequence[str], answer: str, question: str) -> int:
        """Count the answers that equal `answer`."""
        return sum(await gathered(*(self._same(each, answer, question) for each in answers)))

    def majority(self) -> int:
        """The number of tries that have to agree: more than half, and all of two."""
        return self._tries // 2 + 1

    async def _same(self, one: str, other: str, question: str) -> bool:
        if plainly_same(one, other):
            return True
        if is_number(one) and is_number(other):
            return False
        asked = data(question=question, answers=[one, other])
        return (await self._model.ask_json(self._model.prompts.get("data_same"), asked, _Same)).same


def plainly_same(one: str, other: str) -> bool:
    """Return whether two answers are equal as numbers, or letter by letter without case, articles and quotes."""
    if is_number(one) or is_number(other):
        return same_answer(one, other)
    return bool(_plain(one)) and _plain(one) == _plain(other)


def bare(text: str) -> str:
    """The bare words of a text, in lower case, without articles and punctuation, to find it in another text. Of
    scripts without spaces, each character is a word."""
    text = unicodedata.normalize("NFKC", text).lower()
    return " ".join(word for word in re.findall(rf"[{UNSPACED}]|[^\W{UNSPACED}]+", text) if word not in _ARTICLES)


def _plain(text: str) -> str:
    """Punctuation inside stays: `a < b` is not `a > b`, and C is not C++."""
    words = (word.strip(_QUOTES) for word in unicodedata.normalize("NFKC", text).lower().rstrip(".!。 ").split())
    return " ".join(word for word in words if word and word not in _ARTICLES)
