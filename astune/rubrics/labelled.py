"""Labelled answers: with a score each, or ranked against each other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from astune.config.rubrics import RubricsConfig
from astune.config.schema import TaskReaderConfig
from astune.schema import Task, TaskReaderError
from astune.task_reader.jsonl import TaskReaderJsonl


@dataclass(frozen=True, slots=True)
class Example:
    """Answers to one query, with their labels: the higher, the better."""

    query: str
    answers: tuple[str, ...]
    labels: tuple[float, ...]
    reference: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two answers of which the labels prefer one; the queries differ where no query has two labelled answers."""

    better: tuple[Example, int]
    worse: tuple[Example, int]


def read_examples(path: Path, config: RubricsConfig, group_field: str = "") -> list[Example]:
    """The labelled answers of a JSONL file. Pointwise, those to the same query become one example.

    Args:
        group_field: the metadata field that names an example's group, which every line then has; empty for none.

    Raises:
        TaskReaderError: a line is not as it should be; names the file and the task, or the line that has no group.
    """
    jsonl = {"training": {"file_path": str(path.resolve())}, "query_field": config.query_field}
    tasks = TaskReaderJsonl(TaskReaderConfig.model_validate({"type": "jsonl", "jsonl": jsonl})).training_tasks()
    if group_field:
        _require_groups(tasks, path, group_field)
    if config.grader_mode == "listwise":
        return [_ranked(task, path, config) for task in tasks]
    scored: dict[tuple[str, str | None, str], list[tuple[str, float]]] = {}
    for task in tasks:
        one = (_text(task.metadata, config.answer_field, task, path), _score(task, path, config))
        group = str(task.metadata.get(group_field, ""))
        scored.setdefault((task.main_query, _reference(task, config), group), []).append(one)
    return [
        Example(query, tuple(answer for answer, _ in each), tuple(score for _, score in each), reference, group)
        for (query, reference, group), each in scored.items()
    ]


def contrasts(examples: list[Example]) -> list[Contrast]:
    """A better and a worse answer for each example that has them, else of examples that follow each other by label."""
    found = [
        Contrast((example, best), (example, worst))
        for example in examples
        for best, worst in [_extremes(example.labels)]
        if example.labels[best] > example.labels[worst]
    ]
    if found:
        return found
    flat = sorted(((example, i) for example in examples for i in range(len(example.answers))), key=_label)
    half = len(flat) // 2
    pairs = zip(flat[-half:], flat[:half], strict=True) if half else ()
    return [Contrast(better, worse) for better, worse in pairs if _label(better) > _label(worse)]


def _label(one: tuple[Example, int]) -> float:
    example, i = one
    return example.labels[i]


def _extremes(labels: tuple[float, ...]) -> tuple[int, int]:
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    return order[-1], order[0]


def _require_groups(tasks: list[Task], path: Path, group_field: str) -> None:
    numbers = [number for number, line in enumerate(path.read_bytes().splitlines(), start=1) if line.strip()]
    for number, task in zip(numbers, tasks, strict=True):
        if task.metadata.get(group_field) in (None, ""):
            raise TaskReaderError(
                f"{path}:{number}: there is no metadata.{group_field}, which names the label's group",
                hint="write it into every line, or calibrate without --by",
            )


def _ranked(task: Task, path: Path, config: RubricsConfig) -> Example:
    candidates = task.metadata.get("candidates")
    if not isinstance(candidates, list) or len(candidates) < 2:
        raise TaskReaderError(
            f"{path}: task {task.task_id} has no two candidates",
            hint='listwise data has metadata.candidates = [{"answer": ..., "rank": 1}, ...]; '
            "scores of single answers are rubrics.grader_mode: pointwise",
        )
    answers = tuple(_text(each, config.answer_field, task, path) for each in candidates)
    ranks = [each.get("rank") for each in candidates]
    if not all(map(_is_number, ranks)):
        where = f"{path}: task {task.task_id}"
        raise TaskReaderError(f"{where} has the ranks {ranks}", hint="a rank is a number, 1 the best")
    return Example(task.main_query, answers, tuple(-float(rank) for rank in ranks), _reference(task, config))


def _text(row: Any, field: str, task: Task, path: Path) -> str:
    value = row.get(field) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise TaskReaderError(
            f"{path}: task {task.task_id} has no text {field!r}", hint="name the field with rubrics.answer_field"
        )
    return value


def _score(task: Task, path: Path, config: RubricsConfig) -> float:
    score = task.metadata.get("score")
    if not _is_number(score):
        raise TaskReaderError(f"{path}: task {task.task_id} has the score {score!r}", hint="metadata.score is a number")
    if not config.min_score <= score <= config.max_score:
        raise TaskReaderError(
            f"{path}: task {task.task_id} has the score {score:g}",
            hint=f"it is between rubrics.min_score {config.min_score:g} and max_score {config.max_score:g}",
        )
    return float(score)


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is one that a float can hold."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _reference(task: Task, config: RubricsConfig) -> str | None:
    value = task.metadata.get(config.reference_field)
    return None if value is None else str(value)
