"""The endless order of training tasks: reshuffled each epoch, the same for the same seed, resumable anywhere."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from typing import Any

from astune.schema import Task, TaskReaderError

BLOCKS = 8


class TaskOrder:
    """Hands out every task once an epoch.

    The tasks are dealt into eight random blocks once, and an epoch shuffles within each block. So the order differs in
    every epoch, and still at least seven eighths of all tasks lie between a task and its return: a step that begins in
    one epoch and ends in the next never holds a task twice.

    With `stratify_by`, a metadata field, the tasks of each of its values are spread evenly over an epoch. With
    `curriculum`, another one, the blocks go from high values to low ones in place of being random. Raises
    TaskReaderError if there is no task, or one without that field.
    """

    def __init__(
        self, tasks: list[Task], seed: int, stratify_by: str | None = None, curriculum: str | None = None
    ) -> None:
        if not tasks:
            raise TaskReaderError("there is no task to train on", hint="give task_reader a training split")
        self._tasks = tasks
        self._seed = seed
        self._stratify_by = stratify_by
        self._kinds = [_kind(task, stratify_by) for task in tasks]
        self._curriculum = curriculum
        self._values = [] if curriculum is None else [_value(task, curriculum) for task in tasks]
        self._begins = {kind: random.Random(f"{seed}/{kind}").random() for kind in set(self._kinds)}
        self._fingerprint = self._made_fingerprint()
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled()

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, all different. Raises TaskReaderError if there are too few tasks for that."""
        taken: list[Task] = []
        for _ in range(n):
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._shuffled()
            taken.append(self._tasks[self._order[self._position]])
            self._position += 1
        if len({task.task_id for task in taken}) < n:
            raise TaskReaderError(
                f"{n} different tasks a step cannot be taken from {len(self._tasks)}",
                hint="lower trainer.tasks_per_step to a divisor of the number of training tasks, or give more tasks",
            )
        return taken

    def following(self, n: int) -> list[Task]:
        """The tasks that `take` would hand out."""
        state = self.state_dict()
        tasks = self.take(n)
        self.load_state_dict(state)
        return tasks

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "tasks": self._fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises TaskReaderError if it was taken with other tasks or another seed or
        field, so that the order is another."""
        if (state["seed"], state["tasks"]) != (self._seed, self._fingerprint):
            raise TaskReaderError(
                "the training tasks, the seed, task_reader.stratify_by or task_reader.curriculum changed since the "
                "checkpoint was written",
                hint="resume with the same task files and settings, or start a new run from the checkpoint's model",
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        dealt = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/deal").shuffle(dealt)
        dealt = self._spread(dealt)
        if self._values:
            dealt.sort(key=lambda index: -self._values[index])
        shuffle = random.Random(f"{self._seed}/epoch {self._epoch}").shuffle
        order: list[int] = []
        size = -(-len(dealt) // BLOCKS)
        for start in range(0, len(dealt), size):
            block = dealt[start : start + size]
            shuffle(block)
            order += self._spread(block)
        return order

    def _spread(self, tasks: list[int]) -> list[int]:
        """The same tasks with those of a kind at even distances; where a kind begins is drawn once."""
        n_tasks = Counter(self._kinds[index] for index in tasks)
        seen: Counter[str | None] = Counter()
        place: dict[int, float] = {}
        for index in tasks:
            kind = self._kinds[index]
            place[index] = (seen[kind] + self._begins[kind]) / n_tasks[kind]
            seen[kind] += 1
        return sorted(tasks, key=place.__getitem__)

    def _made_fingerprint(self) -> str:
        names = [task.task_id for task in self._tasks]
        if self._stratify_by is not None:
            names += [self._stratify_by, *map(str, self._kinds)]
        if self._curriculum is not None:
            names += [self._curriculum, *map(str, self._values)]
        return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _kind(task: Task, field: str | None) -> str | None:
    if field is None:
        return None
    if field not in task.metadata:
        raise TaskReaderError(
            f"task_reader.stratify_by is {field}, but the training task {task.task_id} has no such metadata field",
            hint=f"it has {', '.join(sorted(task.metadata)) or 'none'}",
        )
    return str(task.metadata[field])


def _value(task: Task, field: str) -> float:
    value = task.metadata.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskReaderError(
            f"task_reader.curriculum is {field}, but the training task {task.task_id} has no number there",
            hint="measure the tasks first: astune data measure --conf FILE.yaml",
        )
    return float(value)
