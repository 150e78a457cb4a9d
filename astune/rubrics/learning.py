"""Rubrics from labelled answers: proposed from contrasts, tested, revised, selected and grouped.

After Auto-Rubric (arXiv 2510.17314), with information gain on the labels in place of embeddings. All questions go
through one helper model, whose answers are kept: a killed run resumes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from astune.config.rubrics import RubricsConfig
from astune.helper_model import Form, HelperModel, data
from astune.rubrics.agreement import comparable
from astune.rubrics.grading import Grader
from astune.rubrics.labelled import Contrast, Example, contrasts
from astune.rubrics.rubric import Rubric, Rubrics, Theme
from astune.rubrics.selection import Floats, Selected, select
from astune.schema import TaskReaderError

_REVISIONS = 2
_MOST = 16
"""Rubrics that are kept at most."""
_SHOWN = 4_000

OnProgress = Callable[[str, int, int], object]
"""Receives the name of a stage, how many of its items are done, and how many there are."""
S = TypeVar("S")
T = TypeVar("T")


class _Texts(Form):
    rubrics: list[str] = Field(min_length=1)


class _Named(Form):
    theme: str
    rubrics: list[int]


class _Themes(Form):
    themes: list[_Named] = Field(min_length=1)


class RubricLearner:
    """Learns rubrics with a helper model."""

    def __init__(
        self, model: HelperModel, config: RubricsConfig, language: str, on_progress: OnProgress = lambda *_: None
    ) -> None:
        self._model = model
        self._config = config
        self._language: Any = language
        self._grader = Grader(model)
        self._on_progress = on_progress

    async def from_labels(self, examples: Sequence[Example], description: str = "") -> Rubrics:
        """Rubrics that order the answers of `examples` as their labels do. Raises TaskReaderError if there is nothing
        to contrast, or no rubric predicts the labels."""
        pairs = contrasts(list(examples))
        if not pairs:
            raise TaskReaderError("all labels are equal", hint="rubrics are learned from better and worse answers")
        proposed = await self._each("proposing", pairs, lambda pair: self._proposed(pair, description))
        candidates = _distinct([text for texts in proposed for text in texts])
        if not candidates:
            raise TaskReaderError("no proposed rubric prefers the better answers", hint="see the labels, or the model")
        marks = await self._each("testing", examples, lambda example: self._marked(example, candidates))
        evidence = _evidence(examples, marks, single=self._config.grader_mode == "pointwise")
        chosen = select(evidence, most=_MOST)
        if not chosen:
            raise TaskReaderError(
                f"none of {len(candidates)} proposed rubrics predicts the labels",
                hint="more labels, or a more capable helper model",
            )
        rubrics = [Rubric(text=candidates[each.number], weight=_weight(each, chosen)) for each in chosen]
        source = {
            "examples": len(examples),
            "proposed": len(candidates),
            "gain_bits_a_pair": round(sum(each.gain_bits for each in chosen), 3),
        }
        return await self._themed(rubrics, source)

    async def from_description(self, description: str) -> Rubrics:
        """Rubrics from a description of the task alone, without labels: all have the same weight."""
        n = self._config.query_specific_generate_number * self._config.categories_number
        instruction = self._model.prompts.get("rubric_describe", number=n)
        found = await self._model.ask_json(instruction, data(task=description), _Texts)
        rubrics = [Rubric(text=text) for text in _distinct(found.rubrics)]
        return await self._themed(rubrics, {"description": description})

    async def _proposed(self, pair: Contrast, description: str) -> list[str]:
        """Rubrics by which the better answer is graded better; none where revising them did not help."""
        instruction = self._model.prompts.get("rubric_propose", number=self._config.query_specific_generate_number)
        shown = {"description": description, **_shown(pair)}
        found = await self._model.ask_json(instruction, data(**shown), _Texts)
        for _ in range(_REVISIONS):
            better, worse = await asyncio.gather(
                *(self._of_answer(example, i, found.rubrics) for example, i in (pair.better, pair.worse))
            )
            if sum(better) > sum(worse):
                return [text for text, b, w in zip(found.rubrics, better, worse, strict=True) if b > w]
            failed = [
                {"rubric": text, "better answer": b, "worse answer": w}
                for text, b, w in zip(found.rubrics, better, worse, strict=True)
            ]
            revise = self._model.prompts.get("rubric_revise", number=self._config.query_specific_generate_number)
            found = await self._model.ask_json(revise, data(**shown, marked=failed), _Texts)
        return []

    async def _of_answer(self, example: Example, i: int, rubrics: Sequence[str]) -> list[float]:
        marks = await self._grader.marks(example.query, [example.answers[i]], rubrics, reference=example.reference)
        return marks[0]

    async def _marked(self, example: Example, rubrics: Sequence[str]) -> list[list[float]]:
        """Marks of an example's answers as the judge will give them: alone or together."""
        if self._config.grader_mode == "listwise":
            return await self._grader.marks(example.query, example.answers, rubrics, reference=example.reference)
        return [await self._of_answer(example, i, rubrics) for i in range(len(example.answers))]

    async def _themed(self, rubrics: list[Rubric], source: dict[str, Any]) -> Rubrics:
        numbered = [{"rubric": number, "text": rubric.text} for number, rubric in enumerate(rubrics, 1)]

        def complete(themes: _Themes) -> None:
            if sorted(n for theme in themes.themes for n in theme.rubrics) != list(range(1, len(rubrics) + 1)):
                raise ValueError(f"themes must have each of the rubrics 1 to {len(rubrics)} once")

        instruction = self._model.prompts.get("rubric_themes", number=self._config.categories_number)
        found = await self._model.ask_json(instruction, data(rubrics=numbered), _Themes, check=complete)
        themes = [
            Theme(theme=theme.theme, rubrics=[rubrics[number - 1] for number in theme.rubrics])
            for theme in found.themes
            if theme.rubrics
        ]
        return Rubrics(
            grader_mode=self._config.grader_mode, language=self._language, themes=themes, learned_from=source
        )

    async def _each(self, stage: str, items: Sequence[S], job: Callable[[S], Awaitable[T]]) -> list[T]:
        """The results of a job for all items, in order; progress is reported."""
        done = 0
        self._on_progress(stage, 0, len(items))

        async def counted(item: S) -> T:
            nonlocal done
            result = await job(item)
            done += 1
            self._on_progress(stage, done, len(items))
            return result

        return await asyncio.gather(*(counted(item) for item in items))


def _shown(pair: Contrast) -> dict[str, Any]:
    (better, b), (worse, w) = pair.better, pair.worse
    queries = {"task": better.query} | ({} if better.query == worse.query else {"other task": worse.query})
    known = {} if better.reference is None else {"reference": better.reference}
    return {**queries, **known, "better answer": better.answers[b][:_SHOWN], "worse answer": worse.answers[w][:_SHOWN]}


def _distinct(texts: Sequence[str]) -> list[str]:
    """Texts without those that have the same words."""
    kept: dict[frozenset[str], str] = {}
    for text in texts:
        words = frozenset(re.findall(r"\w+", text.lower()))
        if words:
            kept.setdefault(words, text.strip())
    return list(kept.values())


def _evidence(examples: Sequence[Example], marks: Sequence[list[list[float]]], *, single: bool) -> Floats:
    """(pairs, rubrics): the marks of a preferred answer less those of the other one.

    Pairs are taken within an example; of answers that were graded alone, across all where no example has two labels.
    """
    groups = [
        [(label, np.array(own)) for label, own in zip(example.labels, each, strict=True)]
        for example, each in zip(examples, marks, strict=True)
    ]
    compared = comparable(groups) if single else groups
    return np.array([a - b for group in compared for la, a in group for lb, b in group if la > lb])


def _weight(one: Selected, chosen: Sequence[Selected]) -> float:
    """Return its weight relative to the heaviest."""
    return round(one.weight / max(each.weight for each in chosen), 3) or 0.001
