"""Interface of a task reader: two lists of tasks, one to train on and one held out, and the checks that both pass.

Reading happens once, when a run starts; the order of training is `TaskOrder`'s. The readers beside this file know where
tasks come from.
"""

from __future__ import annotations

import difflib
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from astune.config.imports import located
from astune.config.schema import TaskReaderConfig
from astune.schema import Task, TaskReaderError, boundary_now, collector_at_rest, content_id

_OWN_CODE = "this is in the reader's own code, or in what it calls"
_FIND = "; self.find(path) also looks for a file beside the configuration"


@dataclass(frozen=True, slots=True)
class TaskSplits:
    training: list[Task]
    validation: list[Task]


def unheard(_: str) -> None:
    """For whoever has no display."""


class TaskReaderBase(ABC):
    """`read` is what a run calls; a reader of your own defines the two splits.

    An `__init__` of its own accepts `config`, `base_dir` and `task_reader.params` as keyword arguments.

    Files are looked for with `find`: in the working directory, then beside the configuration.
    """

    tell: Callable[[str], object] = staticmethod(unheard)
    """Called with what is being read, in words, where that takes a while."""

    def __init__(self, config: TaskReaderConfig, *, base_dir: Path | None = None) -> None:
        self.config = config
        self.base_dir = base_dir

    @abstractmethod
    def training_tasks(self) -> list[Task]: ...

    @abstractmethod
    def validation_tasks(self) -> list[Task]:
        """Held-out tasks; an empty list where nothing is measured."""

    @final
    def read(self, tell: Callable[[str], object] = unheard) -> TaskSplits:
        """Both splits, checked; `tell` receives progress messages.

        Raises:
            TaskReaderError: no training task, an id twice in a split, a held-out task among the training tasks, or
                whatever went wrong in the reader's own code.
        """
        self.tell = tell
        with collector_at_rest():
            splits = TaskSplits(*map(self._with_environments, (self.training_tasks, self.validation_tasks)))
        if not splits.training:
            raise TaskReaderError(
                f"{type(self).__name__} found no training task", hint="check the training split of task_reader"
            )
        _require_unique_ids(splits.training, "training")
        _require_unique_ids(splits.validation, "held-out")
        _require_disjoint(splits)
        return splits

    def find(self, path: str, *, key: str = "") -> Path:
        """The file at `path` in the working directory, or else in the configuration's folder.

        Raises:
            TaskReaderError: it is in neither; `key` is the setting that names it.
        """
        places = self.places(path)
        for place in places:
            if place.is_file():
                return place
        there = f"there is no file {' nor '.join(map(str, places))}"
        raise TaskReaderError(f"{key}: {there}" if key else there, hint=_nearby(places))

    def _with_environments(self, split: Callable[[], list[Task]]) -> list[Task]:
        """The tasks of a split; a file that names their environment is also looked for beside the configuration."""
        tasks = self._called(split)
        known = {name: located(name, self.base_dir) for name in {task.env_type for task in tasks}}
        return [
            task if known[task.env_type] == task.env_type else replace(task, env_type=known[task.env_type])
            for task in tasks
        ]

    def _called(self, split: Callable[[], list[Task]]) -> list[Task]:
        """The tasks of a split; what a reader of the user's own raises is named, and what it returns is checked."""
        if type(self).__module__.startswith("astune."):
            return split()
        what = f"{type(self).__name__}.{split.__name__}"
        with boundary_now(TaskReaderError, what, hint=f"{_OWN_CODE}{_FIND}"):
            tasks: Any = split()
            tasks = list(tasks) if isinstance(tasks, Iterable) else tasks
        wrong = [task for task in tasks if not isinstance(task, Task)] if isinstance(tasks, list) else [tasks]
        if wrong:
            raise TaskReaderError(
                f"{what} returned {reprlib.repr(wrong[0])} where a task belongs", hint="return a list of astune.Task"
            )
        return tasks

    def places(self, path: str) -> list[Path]:
        """Places of a configuration's path: in the working directory, then in the configuration's folder."""
        folders = [folder for folder in (Path.cwd(), self.base_dir) if folder is not None]
        return list(dict.fromkeys((folder / Path(path).expanduser()).resolve() for folder in folders))


def _nearby(places: list[Path]) -> str:
    """Suggest similar file names."""
    for place in places:
        there = [path.name for path in place.parent.glob("*") if path.is_file()]
        close = difflib.get_close_matches(place.name, there, n=1)
        if close:
            return f"did you mean {close[0]}?"
    return "paths are relative to the working directory, then to the configuration's folder"


def _require_unique_ids(tasks: list[Task], split: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise TaskReaderError(
                f"task_id {task.task_id!r} is there twice among the {split} tasks", hint="give each task its own id"
            )
        seen.add(task.task_id)


def _require_disjoint(splits: TaskSplits) -> None:
    held_ids = {task.task_id for task in splits.validation}
    held_content = {_what_is_asked(task): task.task_id for task in splits.validation}
    for task in splits.training if held_ids else ():
        twin = task.task_id if task.task_id in held_ids else held_content.get(_what_is_asked(task))
        if twin is not None:
            raise TaskReaderError(
                f"held-out task {twin!r} is also a training task"
                + ("" if twin == task.task_id else f", under the id {task.task_id!r}"),
                hint="take it out of one of the two; a success rate on trained tasks measures nothing",
            )


def _what_is_asked(task: Task) -> str:
    """Two tasks with one value ask the same; in an environment the metadata belongs to the question."""
    content: dict[str, Any] = {"main_query": task.main_query, "init_messages": task.init_messages}
    if task.env_type != "no_env":
        content |= {"env_type": task.env_type, "metadata": task.metadata}
    return content_id(content)
