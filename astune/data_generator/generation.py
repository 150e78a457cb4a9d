"""Generation of a number of tasks: request drafts, filter them through the funnel, repeat.

Everything is a function of the documents, the examples, the settings and the helper model's answers, which are kept:
a generation that was killed resumes when started again, and ends with the same tasks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from astune.config.data import DataGenerationConfig
from astune.config.sandbox import SandboxConfig
from astune.data_generator.checkers import Checked
from astune.data_generator.documents import Unread, read_documents
from astune.data_generator.draft import ANSWER, Draft
from astune.data_generator.exploration import ExplorationSource, reproduced
from astune.data_generator.filters import (
    New,
    answerable,
    closed_book,
    has_evidence,
    needs_all_passages,
    no_leak,
    well_formed,
)
from astune.data_generator.funnel import NOT_IN_FORM, Check, Funnel, Stage
from astune.data_generator.passages import Count, Passage, passages_of
from astune.data_generator.questions import QuestionSource
from astune.data_generator.solving import Solver
from astune.data_generator.variations import Example, VariationSource
from astune.helper_model import HelperModel, Usage
from astune.schema import Task, TaskReaderError, UnusableAnswer, gathered

OnProgress = Callable[[str, int, int], object]
"""Receives the name of a stage, how many of its items are done, and how many there are."""

_FIRST_WAVE = 16
_LARGEST_WAVE = 64
_PATIENCE = 4
"""Waves in a row without a task after which there are taken to be no more."""


class Source(Protocol):
    """Source of drafts: the requests in a fixed order, and their results."""

    def asks(self) -> Iterator[Any]: ...

    async def drafts(self, ask: Any) -> list[Draft]: ...


@dataclass
class Made:
    """Result of a generation."""

    training: list[Task]
    held_out: list[Task]
    wanted: int
    stages: list[Stage]
    usage: Usage
    unread: list[Unread] = field(default_factory=list)
    passages: int = 0


@dataclass(frozen=True)
class Material:
    """Material of tasks, read and split: passages of documents, and examples."""

    passages: list[Passage]
    unread: list[Unread]
    examples: list[Example]
    worlds: list[Task]
    """Tasks of an environment that is explored."""
    held_out: frozenset[str]
    """Documents, examples and worlds whose tasks are held out."""


def read_material(
    config: DataGenerationConfig,
    count: Count,
    documents: Sequence[Path] = (),
    examples: Sequence[Example] = (),
    worlds: Sequence[Task] = (),
) -> Material:
    """Read the documents, cut them, and decide what is held out. Raises TaskReaderError if there is nothing to make
    tasks of."""
    if not documents and not examples and not worlds:
        raise TaskReaderError(
            "there is nothing to make tasks of",
            hint="name documents or seeds: task_reader.data_generation.documents, task_reader.data_generation.seeds",
        )
    read, unread = read_documents(documents) if documents else ([], [])
    passages = [each for document in read for each in passages_of(document, config.chunk_tokens, count)]
    if documents and not passages:
        raise TaskReaderError(
            f"{len(read)} documents hold no passage that is long enough to ask about", hint="name longer ones"
        )
    groups = [each.name for each in read], [each.task_id for each in examples], [each.task_id for each in worlds]
    held = frozenset().union(*(_held_out(each, config) for each in groups))
    return Material(passages, unread, list(examples), list(worlds), held)


async def make_tasks(
    config: DataGenerationConfig,
    material: Material,
    model: HelperModel,
    sandbox: SandboxConfig,
    on_progress: OnProgress = lambda *_: None,
    answer_field: str = ANSWER,
) -> Made:
    """Ask, verify and divide until there are `config.number` tasks, or no request is left. Each has its answer in the
    metadata's `answer_field` too.

    Raises:
        HelperModelError: the helper model does not answer, or its budget is used up. What it answered is kept.
        TaskReaderError: no draft passed.
    """
    passages, examples = material.passages, material.examples
    of_examples = config.number // 2 if passages and examples else config.number if examples else 0
    kept: list[Draft] = []
    stages: list[Stage] = []
    new = New()
    for example in examples:
        new.asked[""].add(example.question)
    solver = Solver(model, config.tries)
    whole_form = partial(well_formed, passage_is_shown=True)
    if material.worlds:
        walks = ExplorationSource(model, material.worlds, config.seed)
        of_walks = {"form": whole_form, "duplicates": new, "executed again": reproduced}
        kept += await _made(walks, of_walks, config.number, "explorations", stages, on_progress)
    if of_examples:
        variations = VariationSource(model, examples, config.axes, config.seed, material.held_out)
        checked = Checked(model, solver, sandbox, config.tries, [example.answer for example in examples])
        of_variations = {"form": whole_form, "leak": no_leak, "duplicates": new, "checkers": checked}
        kept += await _made(variations, of_variations, of_examples, "variations", stages, on_progress)
    if passages and len(kept) < config.number:
        shown = [{"question": each.question, "answer": each.answer} for each in examples]
        questions = QuestionSource(model, passages, config.seed, shown)
        of_questions: dict[str, Check] = {
            "form": partial(well_formed, passage_is_shown=config.show_passage),
            "leak": no_leak,
            "evidence": has_evidence,
            "duplicates": new,
            "answers": partial(answerable, solver=solver),
            "one passage": partial(needs_all_passages, solver=solver),
        }
        if config.closed_book:
            of_questions["closed book"] = partial(closed_book, solver=solver)
        kept += await _made(questions, of_questions, config.number - len(kept), "questions", stages, on_progress)
    if not kept:
        reasons = "; ".join(f"{n} x {why}" for stage in stages for why, n in stage.dropped.most_common(2))
        raise TaskReaderError(
            f"none of {stages[0].came} drafts became a task ({reasons or 'nothing was proposed'})",
            hint="a more capable helper model, or other documents and examples",
        )
    tasks = [(each, each.task(show_passage=config.show_passage, answer_field=answer_field)) for each in kept]
    return Made(
        [task for draft, task in tasks if draft.group not in material.held_out],
        [task for draft, task in tasks if draft.group in material.held_out],
        config.number,
        stages,
        model.used,
        material.unread,
        len(passages),
    )


async def _made(
    source: Source,
    filters: Mapping[str, Check],
    number: int,
    what: str,
    stages: list[Stage],
    on_progress: OnProgress,
) -> list[Draft]:
    """Drafts of one source that passed, `number` at most; what happened to the others is added to `stages`."""
    proposed = Stage(what)
    funnel = Funnel(filters, on_progress)
    stages += [proposed, *funnel.stages]
    kept: list[Draft] = []
    asks = source.asks()
    asked = fruitless = 0
    size = min(_FIRST_WAVE, number)
    while len(kept) < number and fruitless < _PATIENCE and (wave := list(islice(asks, size))):
        found = await gathered(*(_proposed(source, ask) for ask in wave))
        unusable = [each for each in found if isinstance(each, UnusableAnswer)]
        if len(unusable) == len(wave) and not proposed.kept:
            raise unusable[0]
        drafts = [draft for each in found if not isinstance(each, UnusableAnswer) for draft in each]
        proposed.came += len(drafts) + len(unusable)
        if unusable:
            proposed.dropped[NOT_IN_FORM] += len(unusable)
        on_progress(what, proposed.kept, proposed.came)
        passed = await funnel.passed(drafts)
        fruitless = 0 if passed else fruitless + 1
        kept += passed
        asked += len(wave)
        on_progress("tasks", min(len(kept), number), number)
        size = min(_LARGEST_WAVE, max(_FIRST_WAVE // 2, math.ceil((number - len(kept)) * asked / max(1, len(kept)))))
    return kept[:number]


async def _proposed(source: Source, ask: Any) -> list[Draft] | UnusableAnswer:
    try:
        return await source.drafts(ask)
    except UnusableAnswer as failure:
        return failure


def _held_out(groups: Iterable[str], config: DataGenerationConfig) -> frozenset[str]:
    """The part of the groups that is held out, at least one of several; the same whatever order they come in."""
    order = sorted(groups, key=lambda group: hashlib.sha256(f"{config.seed}/{group}".encode()).digest())
    number = round(config.held_out * len(order))
    if config.held_out and len(order) > 1:
        number = min(max(1, number), len(order) - 1)
    return frozenset(order[:number])
