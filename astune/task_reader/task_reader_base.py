"""Public module of the readers: every class that a configuration or a user's file may name, and the function that opens
them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from astune.config.arguments import require_accepted
from astune.config.imports import import_class, is_reference
from astune.config.schema import READER_ALIASES, AstuneConfig, TaskReaderConfig
from astune.schema import ConfigError, boundary_now, content_id
from astune.task_reader.data_reader import TaskReaderDataGeneration
from astune.task_reader.env_service_reader import TaskReaderEnvService
from astune.task_reader.feedback_reader import TaskReaderFeedback
from astune.task_reader.huggingface import TaskReaderHuggingFace
from astune.task_reader.jsonl import TaskReaderJsonl
from astune.task_reader.reader import TaskReaderBase, TaskSplits

__all__ = [
    "TaskReaderBase",
    "TaskReaderEnvService",
    "TaskReaderHuggingFace",
    "TaskReaderJsonl",
    "TaskSplits",
    "content_id",
    "how_to_hold_out",
    "open_task_reader",
]

READERS: dict[str, type[TaskReaderBase]] = {
    "jsonl": TaskReaderJsonl,
    "huggingface": TaskReaderHuggingFace,
    "env_service": TaskReaderEnvService,
    "feedback_tracing": TaskReaderFeedback,
}
HELD_OUT_BY = {
    "jsonl": "jsonl.validation.file_path",
    "huggingface": "huggingface.validation_split",
    "env_service": "env_service.validation_split",
    "feedback_tracing": "feedback_tracing.held_out",
    "data_generation": "data_generation.held_out",
}
"""The key of each reader that says which tasks are held out."""


def open_task_reader(
    config: TaskReaderConfig, *, base_dir: Path | None = None, experiment: AstuneConfig | None = None
) -> TaskReaderBase:
    """The reader that `task_reader.type` names, made with `task_reader.params`.

    One without an `__init__` of its own reads them from its `config.params`. `experiment` is the whole configuration,
    for the reader that makes tasks with its helper model. Raises ConfigError if there is no such reader, or it has no
    such parameter.
    """
    if config.type == "data_generation":
        return TaskReaderDataGeneration(experiment or AstuneConfig(task_reader=config), base_dir=base_dir)
    reader = READERS.get(READER_ALIASES.get(config.type, config.type))
    if reader is not None:
        return reader(config, base_dir=base_dir)
    if is_reference(config.type):
        reader_class: Any = import_class(config.type, key="task_reader.type", base=TaskReaderBase, base_dir=base_dir)
        if reader_class.read is not TaskReaderBase.read:
            raise ConfigError(
                f"task_reader.type: {reader_class.__name__} has a method `read`, which replaces the run's own",
                hint="give it another name, as `_rows`, and call it from training_tasks and validation_tasks",
            )
        params = {} if reader_class.__init__ is TaskReaderBase.__init__ else config.params
        own = {"base_dir": base_dir} if "base_dir" in inspect.signature(reader_class).parameters else {}
        require_accepted(reader_class, {**own, **params}, key="task_reader.params", positional=1)
        hint = "its __init__, if it has one, takes config and base_dir and passes them to super().__init__"
        with boundary_now(ConfigError, f"task_reader.type: making {reader_class.__name__}", hint=hint):
            return reader_class(config, base_dir=base_dir, **params)
    raise ConfigError(
        f"task_reader.type is {config.type!r}, which is no reader",
        hint=f"use {', '.join(HELD_OUT_BY)}, or a reader of your own: 'module->Class' or 'path/file.py->Class'",
    )


def how_to_hold_out(config: TaskReaderConfig) -> str:
    """Describe how a user configures validation tasks."""
    key = HELD_OUT_BY.get(READER_ALIASES.get(config.type, config.type))
    return f"set task_reader.{key}" if key else f"return some from validation_tasks of {config.type}"
