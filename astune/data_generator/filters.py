"""The filters of drafts: checks without a model first, then those that ask it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

from astune.data_generator.draft import Draft
from astune.data_generator.duplicates import Duplicates
from astune.data_generator.passages import Passage
from astune.data_generator.solving import Solver, bare
from astune.env_service.objective import OBJECTIVE
from astune.scoring.math_answer import is_number

_LONGEST_ANSWER = 600
_LONGEST_QUESTION = 4000
_POINTS_AT_PASSAGE = re.compile(
    r"\b(this|the|above|following|given) (passage|text|section|excerpt|paragraph|document|page|table above)\b"
    r"|(本段|上文|下文|这段|该段|本文)",
    re.IGNORECASE,
)

_MARKED = re.compile(r"(?<![\w-])[-$@#%~/\\+=]+\w[\w-]*|\w[+#]+(?!\w)")


class WellFormed:
    """A question and an answer of a sensible length, which can be understood without the passage."""

    name: ClassVar[str] = "form"

    def __init__(self, *, passage_is_shown: bool) -> None:
        self._passage_is_shown = passage_is_shown

    async def __call__(self, draft: Draft) -> Draft | str:
        if not bare(draft.question) or not draft.answer.strip():
            return "the question or the answer is empty"
        if len(draft.question) > _LONGEST_QUESTION or len(draft.answer) > _LONGEST_ANSWER:
            return "the question or the answer is too long"
        if draft.passages and not self._passage_is_shown and _POINTS_AT_PASSAGE.search(draft.question):
            return "the question points at a passage that is not shown"
        return draft


class NoLeak:
    """The answer does not stand in the question. A number may, where no passage gave it: that is chance."""

    name: ClassVar[str] = "leak"

    async def __call__(self, draft: Draft) -> Draft | str:
        if not draft.passages and is_number(draft.answer):
            return draft
        stands = f" {bare(draft.answer)} " in f" {bare(draft.question)} " and _marked(draft.answer) <= _marked(
            draft.question
        )
        return "the answer stands in the question" if stands else draft


def _marked(text: str) -> set[str]:
    """The words whose marks belong to them, such as --with, $HOME and C++, in lower case."""
    return {found.lower() for found in _MARKED.findall(text)}


class Evidence:
    """Check that quoted evidence is in the passages, and with several passages in each."""

    name: ClassVar[str] = "evidence"

    async def __call__(self, draft: Draft) -> Draft | str:
        if not any(bare(each) for each in draft.evidence):
            return "no evidence is quoted"
        texts = [bare(passage.text) for passage in draft.passages]
        quotes = [bare(each) for each in draft.evidence if bare(each)]
        if not all(any(quote in text for text in texts) for quote in quotes):
            return "what is quoted does not stand in the passage"
        if not all(any(quote in text for quote in quotes) for text in texts):
            return "a passage gives nothing to the answer"
        return draft


@dataclass
class New:
    """Nobody has asked this before, or in this world."""

    name: ClassVar[str] = "duplicates"
    asked: dict[str, Duplicates] = field(default_factory=lambda: defaultdict(Duplicates))

    async def __call__(self, draft: Draft) -> Draft | str:
        asked = self.asked[draft.group if OBJECTIVE in draft.made_of else ""]
        twin = asked.twin_of(draft.question)
        if twin is None:
            asked.add(draft.question)
            return draft
        return "asked already, word for word" if bare(twin) == bare(draft.question) else "asked already, nearly"


@dataclass
class Answerable:
    """Solved again, most tries give the answer that it came with."""

    name: ClassVar[str] = "answers"
    solver: Solver

    async def __call__(self, draft: Draft) -> Draft | str:
        answers = await self.solver.answers(draft.question, draft.passages)
        enough = self.solver.majority()
        if len(answers) < enough:
            return "it cannot be answered" + (" from its passage" if draft.passages else "")
        if await self.solver.agreeing(answers, draft.answer, draft.question) >= enough:
            return draft
        if max([await self.solver.agreeing(answers, each, draft.question) for each in answers]) >= enough:
            return "solved again, the answer is another"
        return "solved again, the answers disagree"


@dataclass
class NeedsAllPassages:
    """Check that none of several passages is enough by itself."""

    name: ClassVar[str] = "one passage"
    solver: Solver

    async def __call__(self, draft: Draft) -> Draft | str:
        for passage in draft.passages if len(draft.passages) > 1 else ():
            if await _answered(self.solver, draft, [passage]):
                return "one of its passages is enough"
        return draft


@dataclass
class ClosedBook:
    """Without the passage the answer is not known."""

    name: ClassVar[str] = "closed book"
    solver: Solver

    async def __call__(self, draft: Draft) -> Draft | str:
        answers = await self.solver.answers(draft.question, [])
        known = await self.solver.agreeing(answers, draft.answer, draft.question)
        return "answered without its passage" if known >= self.solver.majority() else draft


async def _answered(solver: Solver, draft: Draft, passages: list[Passage]) -> bool:
    [*answers] = await solver.answers(draft.question, passages, tries=1)
    return bool(await solver.agreeing(answers, draft.answer, draft.question))
