"""The user's parts, made from the configuration: tasks, workflow and judge, all before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from astune.config.imports import import_class
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, Task
from astune.task_judge.judge_base import JudgeBase
from astune.task_reader.task_reader_base import TaskReaderBase, TaskReaderJsonl
from astune.workflow import Workflow

READERS: dict[str, type[TaskReaderBase]] = {"jsonl": TaskReaderJsonl, "dataset_file": TaskReaderJsonl}


@dataclass(frozen=True, slots=True)
class UserParts:
    """What the user brings. `judge` is None where the workflow returns its own reward."""

    training_tasks: list[Task]
    validation_tasks: list[Task]
    workflow: type[Workflow]
    judge: JudgeBase | None


def load_parts(config: AstuneConfig, base_dir: Path | None) -> UserParts:
    """Import and read what the configuration names; `base_dir` is the folder of the YAML file.

    Raises:
        ConfigError: a name does not import, or is not what it should be.
        TaskReaderError: tasks cannot be read.
    """
    if not config.rollout.workflow:
        raise ConfigError(
            "rollout.workflow is not set: there is no agent to train",
            hint="name your agent program, as module->Class or path/file.py->Class",
        )
    workflow = import_class(config.rollout.workflow, key="rollout.workflow", base=Workflow, base_dir=base_dir)
    judge = None
    if config.task_judge.judge_protocol:
        judge_class = import_class(
            config.task_judge.judge_protocol, key="task_judge.judge_protocol", base=JudgeBase, base_dir=base_dir
        )
        judge = judge_class(config)
    reader_class = READERS.get(config.task_reader.type) or import_class(
        config.task_reader.type, key="task_reader.type", base=TaskReaderBase, base_dir=base_dir
    )
    reader = reader_class(config.task_reader, base_dir=base_dir)
    return UserParts(reader.training_tasks(), reader.validation_tasks(), workflow, judge)
