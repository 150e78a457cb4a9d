"""Tasks from a data set in the hub's layout: a field is the query, the whole row is metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from astune.schema import Task, TaskReaderError
from astune.task_reader.dataset_files import DatasetFiles, open_dataset
from astune.task_reader.raw_row import task_of_raw_row
from astune.task_reader.reader import TaskReaderBase
from astune.task_reader.rows import row_count, rows_of

_TELL_EVERY = 5_000


class TaskReaderHuggingFace(TaskReaderBase):
    """A hub id, a folder or a file, as `task_reader.huggingface` describes.

    Rows that are equal in every field are all kept, so that a split is as large as published: the id of the second one
    ends in `-2`.
    """

    def training_tasks(self) -> list[Task]:
        return self._read(self.config.huggingface.training_split, "training_split")

    def validation_tasks(self) -> list[Task]:
        split = self.config.huggingface.validation_split
        return [] if split is None else self._read(split, "validation_split")

    @cached_property
    def _dataset(self) -> DatasetFiles:
        path = self.config.huggingface.dataset_path
        if not path:
            raise TaskReaderError(
                "there is no data set to read",
                hint="set task_reader.huggingface.dataset_path: a hub id, folder or file",
            )
        return open_dataset(path, self.places(path), self.tell)

    def _read(self, split: str, key: str) -> list[Task]:
        subset = self.config.huggingface.subset
        names = self._dataset.layout.files_of(subset, split, key=f"task_reader.huggingface.{key}")
        paths = self._dataset.fetch(names, self.tell)
        title = ", ".join((self._dataset.title, *([f"subset {subset}"] if subset else []), f"split {split}"))
        tasks = list(_with_own_ids(self._tasks_of(title, names, paths)))
        if not tasks:
            raise TaskReaderError(f"{title} holds no row", hint=f"set task_reader.huggingface.{key} to another split")
        return tasks

    def _tasks_of(self, title: str, names: Sequence[str], paths: Sequence[Path]) -> Iterator[Task]:
        field = self.config.huggingface.query_field
        counts = [row_count(path) for path in paths]
        total = "" if None in counts else f" of {sum(filter(None, counts)):,}"
        read = 0
        for name, path in zip(names, paths, strict=True):
            for number, row in enumerate(rows_of(path), start=1):
                if read % _TELL_EVERY == 0:
                    self.tell(f"reading {title}: {read:,}{total} rows")
                read += 1
                where = f"{title}, row {number} of {name}"
                yield task_of_raw_row(row, where=where, query_field=field, key="task_reader.huggingface.query_field")


def _with_own_ids(tasks: Iterator[Task]) -> Iterator[Task]:
    seen: Counter[str] = Counter()
    for task in tasks:
        seen[task.task_id] += 1
        again = seen[task.task_id]
        yield task if again == 1 else replace(task, task_id=f"{task.task_id}-{again}")
