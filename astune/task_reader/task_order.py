"""The endless order of training tasks: shuffled anew each epoch, the same for the same seed, resumable anywhere."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from astune.schema import Task, TaskReaderError

BLOCKS = 8


class TaskOrder:
    """Hands out every task once an epoch.

    The tasks are dealt into eight random blocks once, and an epoch shuffles within each block. So the order differs
    in every epoch, and still at least seven eighths of all tasks lie between a task and its return: a step that
    begins in one epoch and ends in the next never holds a task twice.
    """

    def __init__(self, tasks: list[Task], seed: int) -> None:
        if not tasks:
            raise TaskReaderError("there is no task to train on", hint="give task_reader a training split")
        self._tasks = tasks
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled()

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, all different.

        Raises:
            TaskReaderError: there are too few tasks for that.
        """
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

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed, "tasks": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            TaskReaderError: it was taken with other tasks or another seed, so that the order is not the same.
        """
        if (state["seed"], state["tasks"]) != (self._seed, self._fingerprint()):
            raise TaskReaderError(
                "the training tasks or the seed changed since the checkpoint was written",
                hint="resume with the same task files and seed, or start a new run from the checkpoint's model",
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        dealt = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/deal").shuffle(dealt)
        shuffle = random.Random(f"{self._seed}/epoch {self._epoch}").shuffle
        order: list[int] = []
        size = -(-len(dealt) // BLOCKS)
        for start in range(0, len(dealt), size):
            block = dealt[start : start + size]
            shuffle(block)
            order += block
        return order

    def _fingerprint(self) -> str:
        return hashlib.sha256("\n".join(task.task_id for task in self._tasks).encode()).hexdigest()[:16]
