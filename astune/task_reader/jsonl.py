"""Tasks from JSONL files, one a line, in the task format or as rows of another one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from astune.config.schema import FileConfig
from astune.renderers import canonical
from astune.schema import Message, Task, TaskReaderError, WorkflowError, content_id
from astune.task_reader.raw_row import task_of_raw_row
from astune.task_reader.reader import TaskReaderBase
from astune.task_reader.rows import json_object

TASK_FIELDS = tuple(field.name for field in fields(Task))
QUERY_FIELD = "main_query"
_OTHER_FORMATS = {".csv", ".parquet"}
_CONVERSATION = {"messages", "tools"}
_PREFERENCE = {"prompt", "chosen", "rejected", "tools"}


class TaskReaderJsonl(TaskReaderBase):
    """A JSON object a line: a task, or, where `query_field` names another field, a row that becomes metadata."""

    def training_tasks(self) -> list[Task]:
        if self.config.jsonl.training is None:
            raise TaskReaderError("there is no file of training tasks", hint="set task_reader.jsonl.training.file_path")
        return self._read(self.config.jsonl.training, "training")

    def validation_tasks(self) -> list[Task]:
        if self.config.jsonl.validation is None:
            return []
        return self._read(self.config.jsonl.validation, "validation")

    def _read(self, file: FileConfig, split: str) -> list[Task]:
        path = self.find(file.file_path, key=f"task_reader.jsonl.{split}.file_path")
        tasks: list[Task] = []
        line_of_id: dict[str, int] = {}
        try:
            lines = path.read_bytes().splitlines()
        except OSError as cause:
            raise TaskReaderError(f"{path} cannot be read: {cause.strerror}", hint="check its permissions") from cause
        if path.suffix in _OTHER_FORMATS or (path.suffix == ".json" and lines and lines[0].startswith(b"[")):
            raise TaskReaderError(
                f"{path} does not have one JSON object per line",
                hint="set task_reader.type to huggingface and task_reader.huggingface.dataset_path to this file",
            )
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            task = _task_of_line(line, where, self.config.jsonl.query_field)
            _require_readable(task.init_messages, f"{where}: ")
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


def _require_readable(messages: list[Message], where: str) -> None:
    """Raises TaskReaderError if a message is none that a model can read, such as one whose content is a number; it
    begins with `where`."""
    for index, message in enumerate(messages):
        try:
            canonical(message)
        except WorkflowError as cause:
            raise TaskReaderError(
                f"{where}message {index + 1}: {cause.message}",
                hint='content is text, a list of text and image blocks, or null beside "tool_calls"',
            ) from cause


def _task_of_line(line: bytes, where: str, query_field: str) -> Task:
    row = json_object(line, where)
    if query_field == QUERY_FIELD and set(row) <= _CONVERSATION and "messages" in row:
        return _task_of_conversation(row, where)
    if query_field == QUERY_FIELD and set(row) <= _PREFERENCE and {"prompt", "chosen", "rejected"} <= set(row):
        return _task_of_preference(row, where)
    if query_field == QUERY_FIELD:
        return _task_of_task_row(row, where)
    return task_of_raw_row(row, where=where, query_field=query_field, key="task_reader.jsonl.query_field")


def _task_of_conversation(row: dict[str, Any], where: str) -> Task:
    """A whole conversation, as `astune sft` learns it: what comes before the first answer is the task."""
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise TaskReaderError(f"{where}: 'messages' is no list of messages", hint='{"messages": [{"role": ...}, ...]}')
    answers = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    if not answers or not answers[0]:
        raise TaskReaderError(f"{where}: 'messages' has no answer to anything", hint="a user speaks, then an assistant")
    try:
        task = Task(content_id(row), init_messages=messages[: answers[0]], metadata=row)
    except ValueError as cause:
        raise TaskReaderError(f"{where}: {cause}", hint='{"messages": [{"role": ..., "content": ...}, ...]}') from cause
    _require_readable(messages, f"{where}: 'messages', ")
    return task


def _task_of_preference(row: dict[str, Any], where: str) -> Task:
    """Two answers to a prompt, as `astune dpo` learns them; each is a text or a list of messages."""
    for name in ("prompt", "chosen", "rejected"):
        value = row[name]
        is_messages = isinstance(value, list) and all(isinstance(each, dict) for each in value)
        if not value or not (isinstance(value, str) or is_messages):
            raise TaskReaderError(
                f"{where}: {name!r} is neither a text nor a list of messages",
                hint='{"prompt": "...", "chosen": "...", "rejected": "..."}',
            )
        if isinstance(value, list):
            _require_readable(value, f"{where}: {name!r}, ")
    prompt = row["prompt"]
    asked: dict[str, Any] = {"main_query": prompt} if isinstance(prompt, str) else {"init_messages": prompt}
    try:
        return Task(content_id(row), **asked, metadata={name: row[name] for name in row if name != "prompt"})
    except ValueError as cause:
        raise TaskReaderError(f"{where}: {cause}", hint='{"prompt": [{"role": ..., "content": ...}], ...}') from cause


def _task_of_task_row(row: dict[str, Any], where: str) -> Task:
    unknown = sorted(set(row) - set(TASK_FIELDS))
    if unknown:
        raise TaskReaderError(
            f"{where}: a task has no field {', '.join(map(repr, unknown))}; expected {', '.join(TASK_FIELDS)}",
            hint="move it into 'metadata', or set task_reader.jsonl.query_field to read rows of another format",
        )
    given: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
    given["task_id"] = given.get("task_id", content_id(given))
    if isinstance(given["task_id"], int):
        given["task_id"] = str(given["task_id"])
    try:
        task = Task(**given)
    except ValueError as cause:
        raise TaskReaderError(
            f"{where}: {cause}",
            hint='a task is {"main_query": "...", "task_id": "...", "env_type": "...", "metadata": {...}}',
        ) from cause
    if not task.task_id.strip():
        raise TaskReaderError(f"{where}: task_id is empty", hint="leave it out, and it is derived from the content")
    return task
