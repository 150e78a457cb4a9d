"""Questions about documents: proposed by the helper model from one passage, or from two of the same document."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astune.data_generator.draft import Draft
from astune.data_generator.passages import Passage
from astune.helper_model import Form, HelperModel, data

_AT_ONCE = 3
"""Questions that are asked for at a time."""
_ROUNDS = 3
_EVERY = 4
"""Every so many passages one is asked about together with another of its document."""
_EXAMPLES = 3


class _Proposed(Form):
    question: str
    answer: str
    evidence: list[str]


class _Questions(Form):
    questions: list[_Proposed]


@dataclass(frozen=True, slots=True)
class AboutPassages:
    """Asks for questions about these passages; `number` counts the requests for the same passages."""

    passages: tuple[Passage, ...]
    number: int


class QuestionSource:
    """Drafts from passages, all of them in turn, `_ROUNDS` times.

    Args:
        examples: questions with answers that show what is wanted.
        seed: draws the order of the passages and their pairs.
    """

    def __init__(
        self, model: HelperModel, passages: Sequence[Passage], seed: int, examples: Sequence[dict[str, str]] = ()
    ) -> None:
        self._model = model
        self._passages = passages
        self._seed = seed
        self._examples = list(examples)

    def asks(self) -> Iterator[AboutPassages]:
        """Return the requests, in an order drawn from the seed; documents alternate."""
        by_document: dict[str, list[Passage]] = {}
        for passage in self._passages:
            by_document.setdefault(passage.document, []).append(passage)
        for number in range(_ROUNDS):
            draw = random.Random(f"{self._seed}/{number}")
            for index, passage in enumerate(self._in_turn(by_document, draw)):
                yield AboutPassages((passage,), number)
                others = [each for each in by_document[passage.document] if each is not passage]
                if index % _EVERY == 0 and others:
                    yield AboutPassages((passage, draw.choice(others)), number)

    async def drafts(self, ask: AboutPassages) -> list[Draft]:
        """Proposal of the helper model."""
        several = len(ask.passages) > 1
        instruction = self._model.prompts.get("data_ask_several" if several else "data_ask", number=_AT_ONCE)
        shown = [{"headings": " > ".join(each.headings), "text": each.text} for each in ask.passages]
        examples: dict[str, Any] = {"examples": self._examples[:_EXAMPLES]} if self._examples else {}
        question = data(document=ask.passages[0].document, passages=shown, **examples)
        found = await self._model.ask_json(instruction, question, _Questions, number=ask.number)
        document = ask.passages[0].document
        return [
            Draft(
                each.question,
                each.answer,
                group=document,
                made_of={"document": document, "hops": len(ask.passages)},
                passages=ask.passages,
                evidence=each.evidence,
            )
            for each in found.questions[:_AT_ONCE]
        ]

    @staticmethod
    def _in_turn(by_document: dict[str, list[Passage]], draw: random.Random) -> Iterator[Passage]:
        piles = [draw.sample(passages, len(passages)) for passages in by_document.values()]
        draw.shuffle(piles)
        while piles:
            for pile in piles:
                yield pile.pop()
            piles = [pile for pile in piles if pile]
