"""Readers: whatever holds tasks becomes a list of `Task` for training and one held out from it.

A reader reads; the order of training is `TaskOrder`'s. Reading happens once, when a run starts.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from astune.config.imports import import_class, is_reference
from astune.config.schema import FileConfig, TaskReaderConfig
from astune.schema import ConfigError, Task, TaskReaderError

TASK_FIELDS = tuple(Task.model_fields)
QUERY_FIELD = "main_query"


@dataclass(frozen=True, slots=True)
class TaskSplits:
    training: list[Task]
    validation: list[Task]


class TaskReaderBase(ABC):
    """`read` is what a run calls; a reader of your own defines the two splits, and takes `config.params`."""

    def __init__(self, config: TaskReaderConfig, *, base_dir: Path | None = None) -> None:
        self.config = config
        self.base_dir = base_dir

    @abstractmethod
    def training_tasks(self) -> list[Task]: ...

    @abstractmethod
    def validation_tasks(self) -> list[Task]:
        """Held-out tasks; an empty list where nothing is measured."""

    def read(self) -> TaskSplits:
        """Both splits, checked.

        Raises:
            TaskReaderError: no training task, an id twice in a split, or a held-out task among the training tasks.
        """
        splits = TaskSplits(self.training_tasks(), self.validation_tasks())
        if not splits.training:
            raise TaskReaderError(
                f"{type(self).__name__} found no training task", hint="check the training split of task_reader"
            )
        _require_unique_ids(splits.training, "training")
        _require_unique_ids(splits.validation, "held-out")
        _require_disjoint(splits)
        return splits


class TaskReaderJsonl(TaskReaderBase):
    """One JSON object a line: a task, or, where `query_field` names another field, a row that becomes metadata."""

    def training_tasks(self) -> list[Task]:
        if self.config.jsonl.training is None:
            raise TaskReaderError("there is no file of training tasks", hint="set task_reader.jsonl.training.file_path")
        return self._read(self.config.jsonl.training, "training")

    def validation_tasks(self) -> list[Task]:
        if self.config.jsonl.validation is None:
            return []
        return self._read(self.config.jsonl.validation, "validation")

    def _read(self, file: FileConfig, split: str) -> list[Task]:
        path = self._find(file.file_path, f"task_reader.jsonl.{split}.file_path")
        tasks: list[Task] = []
        line_of_id: dict[str, int] = {}
        try:
            lines = path.read_bytes().splitlines()
        except OSError as cause:
            raise TaskReaderError(f"{path} cannot be read: {cause.strerror}", hint="check its permissions") from cause
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            task = _task_of_line(line, f"{path}:{number}", self.config.jsonl.query_field)
            if task.task_id in line_of_id:
                raise TaskReaderError(
                    f"{path}:{number}: task_id {task.task_id!r} is already on line {line_of_id[task.task_id]}",
                    hint="give each task its own task_id; without one, equal lines have the same",
                )
            line_of_id[task.task_id] = number
            tasks.append(task)
        if not tasks:
            raise TaskReaderError(f"{path} holds no task", hint="write one JSON object a line")
        return tasks

    def _find(self, file_path: str, key: str) -> Path:
        places = [folder / Path(file_path).expanduser() for folder in (Path.cwd(), self.base_dir) if folder is not None]
        for place in places:
            if place.is_file():
                return place
        looked = " nor ".join(dict.fromkeys(str(place) for place in places))
        raise TaskReaderError(
            f"{key}: there is no file {looked}",
            hint="paths are relative to the working directory, then to the configuration's folder",
        )


def open_task_reader(config: TaskReaderConfig, *, base_dir: Path | None = None) -> TaskReaderBase:
    """The reader that `task_reader.type` names.

    Raises:
        ConfigError: there is no such reader.
    """
    if config.type in ("jsonl", "dataset_file"):
        return TaskReaderJsonl(config, base_dir=base_dir)
    if config.type == "env_service":
        return TaskReaderEnvService(config, base_dir=base_dir)
    if is_reference(config.type):
        reader_class: Any = import_class(config.type, key="task_reader.type", base=TaskReaderBase, base_dir=base_dir)
        return reader_class(config, base_dir=base_dir)
    raise ConfigError(
        f"task_reader.type is {config.type!r}, which is no reader",
        hint="use jsonl, env_service, or a reader of your own: 'module->Class' or 'path/file.py->Class'",
    )


def content_id(content: dict[str, Any]) -> str:
    """An id that depends on nothing but the content: the same in every run, for every order of keys."""
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _task_of_line(line: bytes, where: str, query_field: str) -> Task:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as cause:
        raise TaskReaderError(f"{where}: not UTF-8 (byte {cause.start})", hint="save the file as UTF-8") from cause
    except ValueError as cause:
        raise TaskReaderError(
            f"{where}: expected one JSON object, and this is not JSON: {cause}",
            hint="write each task on one line, without commas between lines",
        ) from cause
    if not isinstance(row, dict):
        raise TaskReaderError(
            f"{where}: expected one JSON object, found {type(row).__name__}",
            hint="write one object a line rather than one list",
        )
    return _task_of_task_row(row, where) if query_field == QUERY_FIELD else _task_of_raw_row(row, where, query_field)


def _task_of_raw_row(row: dict[str, Any], where: str, query_field: str) -> Task:
    query = row.get(query_field)
    if not isinstance(query, str) or not query.strip():
        raise TaskReaderError(
            f"{where}: expected text in field {query_field!r}, found "
            + (f"{query!r}" if query_field in row else f"only the fields {', '.join(sorted(row)) or 'none'}"),
            hint="set task_reader.jsonl.query_field to the field that holds the query",
        )
    return Task(task_id=content_id(row), main_query=query, metadata=row)


def _task_of_task_row(row: dict[str, Any], where: str) -> Task:
    unknown = sorted(set(row) - set(TASK_FIELDS))
    if unknown:
        raise TaskReaderError(
            f"{where}: a task has no field {', '.join(map(repr, unknown))}; expected {', '.join(TASK_FIELDS)}",
            hint="move it into 'metadata', or set task_reader.jsonl.query_field to read rows of another format",
        )
    given: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
    if isinstance(given.get("task_id"), int):
        given["task_id"] = str(given["task_id"])
    try:
        task = Task.model_validate({"task_id": content_id(given)} | given)
    except ValidationError as cause:
        found = "; ".join(_one_line(error) for error in cause.errors())
        raise TaskReaderError(
            f"{where}: {found}",
            hint='a task is {"main_query": "...", "task_id": "...", "env_type": "...", "metadata": {...}}',
        ) from cause
    if not task.task_id.strip():
        raise TaskReaderError(f"{where}: task_id is empty", hint="leave it out, and it is derived from the content")
    return task


def _one_line(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    return f"field {field!r}: {message}, found {error['input']!r}" if field else message


def _require_unique_ids(tasks: list[Task], split: str) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise TaskReaderError(
                f"task_id {task.task_id!r} is there twice among the {split} tasks", hint="give each task its own id"
            )
        seen.add(task.task_id)


def _require_disjoint(splits: TaskSplits) -> None:
    training_ids = {task.task_id for task in splits.training}
    training_content = {_what_is_asked(task): task.task_id for task in splits.training}
    for task in splits.validation:
        twin = task.task_id if task.task_id in training_ids else training_content.get(_what_is_asked(task))
        if twin is not None:
            raise TaskReaderError(
                f"held-out task {task.task_id!r} is also a training task"
                + ("" if twin == task.task_id else f", under the id {twin!r}"),
                hint="take it out of one of the two; a success rate on trained tasks measures nothing",
            )


def _what_is_asked(task: Task) -> str:
    """Two tasks with one value ask the same; in an environment the metadata belongs to the question."""
    content: dict[str, Any] = {"main_query": task.main_query, "init_messages": task.init_messages}
    if task.env_type != "no_env":
        content |= {"env_type": task.env_type, "metadata": task.metadata}
    return content_id(content)


from astune.task_reader.env_service_reader import TaskReaderEnvService  # noqa: E402 - it derives from what is above
