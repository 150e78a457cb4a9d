"""Grading by rubrics: a helper model marks which ones are met, answer by answer or for the answers to one query
together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from astune.helper_model import Form, HelperModel, data

_TOGETHER = 8
"""Maximum rubrics in one question: more are marked with less care."""
_VALUE = {"yes": 1.0, "partly": 0.5, "no": 0.0}


class _Mark(Form):
    answer: int
    rubric: int
    met: Literal["yes", "partly", "no"]


class _Marks(Form):
    marks: list[_Mark]


class Grader:
    """Marks answers by rubrics: 1 for one that is met, a half for one that is met in part, 0 for the others."""

    def __init__(self, model: HelperModel) -> None:
        self._model = model
        self._instruction = model.prompts.get("rubric_mark")

    async def marks(
        self, query: str, answers: Sequence[str], rubrics: Sequence[str], *, reference: str | None = None
    ) -> list[list[float]]:
        """Return a mark for each answer and rubric, answers first. Raises HelperModelError if the model did not mark
        them."""
        parts = [rubrics[at : at + _TOGETHER] for at in range(0, len(rubrics), _TOGETHER)]
        of_parts = await asyncio.gather(*(self._marks(query, answers, part, reference) for part in parts))
        return [[mark for part in of_parts for mark in part[i]] for i in range(len(answers))]

    async def _marks(
        self, query: str, answers: Sequence[str], rubrics: Sequence[str], reference: str | None
    ) -> list[list[float]]:
        numbered = [{"answer": number, "text": text} for number, text in enumerate(answers, 1)]
        asked = [{"rubric": number, "text": text} for number, text in enumerate(rubrics, 1)]
        known = {} if reference is None else {"reference": reference}
        question = data(task=query, **known, answers=numbered, rubrics=asked)
        wanted = {(a, r) for a in range(1, len(answers) + 1) for r in range(1, len(rubrics) + 1)}

        def complete(marks: _Marks) -> None:
            if sorted((mark.answer, mark.rubric) for mark in marks.marks) != sorted(wanted):
                raise ValueError("marks must have each answer with each rubric once")

        found = await self._model.ask_json(self._instruction, question, _Marks, check=complete)
        by_place = {(mark.answer, mark.rubric): _VALUE[mark.met] for mark in found.marks}
        return [[by_place[a + 1, r + 1] for r in range(len(rubrics))] for a in range(len(answers))]
