"""The filters of drafts: checks without a model first, then those that ask it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from astune.data_generator.draft import Draft
from astune.data_generator.duplicates import Duplicates
from astune.data_generator.solving import UNSPACED, Solver, bare
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


async def well_formed(draft: Draft, *, passage_is_shown: bool) -> Draft | str:
    """Check the lengths of question and answer, and that they can be understood without the passage."""
    if not bare(draft.question) or not draft.answer.strip():
        return "the question or the answer is empty"
    if len(draft.question) > _LONGEST_QUESTION or len(draft.answer) > _LONGEST_ANSWER:
        return "the question or the answer is too long"
    if draft.passages and not passage_is_shown and _POINTS_AT_PASSAGE.search(draft.question):
        return "the question points at a passage that is not shown"
    return draft


async def no_leak(draft: Draft) -> Draft | str:
    """Check that the answer does not stand in the question. A number may, where no passage gave it: that is chance."""
    if not draft.passages and is_number(draft.answer):
        return draft
    if re.fullmatch(rf"[{UNSPACED}]", bare(draft.answer)):
        return draft  # 是 is in half of all questions
    stands = f" {bare(draft.answer)} " in f" {bare(draft.question)} "
    leaks = stands and _marked(draft.answer) <= _marked(draft.question)
    return "the answer stands in the question" if leaks else draft


def _marked(text: str) -> set[str]:
    """The words whose marks belong to them, such as --with, $HOME and C++, in lower case."""
    return {found.lower() for found in _MARKED.findall(text)}


async def has_evidence(draft: Draft) -> Draft | str:
    """Check that quoted evidence is in the passages, and with several passages in each."""
    if not any(bare(each) for each in draft.evidence):
        return "no evidence is quoted"
    texts = [f" {bare(passage.text)} " for passage in draft.passages]
    quotes = [f" {bare(each)} " for each in draft.evidence if bare(each)]
    if not all(any(quote in text for text in texts) for quote in quotes):
        return "what is quoted does not stand in the passage"
    if not all(any(quote in text for quote in quotes) for text in texts):
        return "a passage gives nothing to the answer"
    return draft


@dataclass
class New:
    """Nobody has asked this before, or in this world."""

    asked: dict[str, Duplicates] = field(default_factory=lambda: defaultdict(Duplicates))

    async def __call__(self, draft: Draft) -> Draft | str:
        asked = self.asked[draft.group if OBJECTIVE in draft.made_of else ""]
        twin = asked.twin_of(draft.question)
        if twin is None:
            asked.add(draft.question)
            return draft
        return "asked already, word for word" if bare(twin) == bare(draft.question) else "asked already, nearly"


async def answerable(draft: Draft, solver: Solver) -> Draft | str:
    """Check that most tries to solve it again give the answer that it came with."""
    answers = await solver.answers(draft.question, draft.passages)
    enough = solver.majority()
    if len(answers) < enough:
        return "it cannot be answered" + (" from its passage" if draft.passages else "")
    if await solver.agreeing(answers, draft.answer, draft.question) >= enough:
        return draft
    if max([await solver.agreeing(answers, each, draft.question) for each in answers]) >= enough:
        return "solved again, the answer is another"
    return "solved again, the answers disagree"


async def needs_all_passages(draft: Draft, solver: Solver) -> Draft | str:
    """Check that none of several passages is enough by itself."""
    for passage in draft.passages if len(draft.passages) > 1 else ():
        answers = await solver.answers(draft.question, [passage], tries=1)
        if await solver.agreeing(answers, draft.answer, draft.question):
            return "one of its passages is enough"
    return draft


async def closed_book(draft: Draft, solver: Solver) -> Draft | str:
    """Check that the answer is not known without the passage."""
    answers = await solver.answers(draft.question, [])
    known = await solver.agreeing(answers, draft.answer, draft.question)
    return "answered without its passage" if known >= solver.majority() else draft
