"""The user's parts, made from the configuration before a model is loaded: tasks, workflow, judge and algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astune.algorithm import Algorithm, load_algorithm
from astune.config.imports import import_class
from astune.config.schema import AstuneConfig, ProgramConfig
from astune.schema import ConfigError, Faults, Task
from astune.task_judge import JudgeBase, load_judge
from astune.task_reader import TaskSplits, open_task_reader
from astune.workflow import Workflow
from astune.workflow.agent_server import agent_server_workflow
from astune.workflow.program import program_workflow
from astune.workflow.workers import workers_workflow


@dataclass(frozen=True, slots=True)
class UserParts:
    """What the user brings. `judge` is None where the workflow returns its own reward.

    There is always a training task, except in a plan made before there is anybody to ask for tasks.
    """

    training_tasks: list[Task]
    validation_tasks: list[Task]
    workflow: type[Workflow]
    judge: JudgeBase | None
    algorithm: Algorithm


def load_parts(
    config: AstuneConfig,
    base_dir: Path | None,
    tell: Callable[[str], object] = lambda _: None,
    *,
    with_tasks: bool = True,
) -> UserParts:
    """Import and read what the configuration names; `base_dir` is the folder of the YAML file.

    `tell` hears which tasks are being fetched and read; `with_tasks` False leaves them out.

    Raises:
        ConfigError: a name does not import, or is not what it should be; or several things are wrong.
        TaskReaderError: tasks cannot be read, or a held-out task is also trained on.
    """
    faults = Faults()
    workflow = faults.collect(lambda: _workflow(config, base_dir))
    judge = faults.collect(lambda: load_judge(config, base_dir=base_dir))
    algorithm = faults.collect(lambda: load_algorithm(config, base_dir))
    tasks = faults.collect(lambda: _tasks(config, base_dir, tell, with_tasks))
    if faults or workflow is None or algorithm is None or tasks is None:
        raise faults.error()
    return UserParts(tasks.training, tasks.validation, workflow, judge, algorithm)


def _workflow(config: AstuneConfig, base_dir: Path | None) -> type[Workflow]:
    if not config.rollout.workflow:
        raise ConfigError(
            "rollout.workflow is not set: there is no agent to train",
            hint="name your agent program, as module->Class or path/file.py->Class",
        )
    match config.rollout.workflow:
        case ProgramConfig(command=[_, *_]) as program:
            return program_workflow(program, base_dir)
        case ProgramConfig(workers="") as server:
            return agent_server_workflow(server)
        case ProgramConfig() as elsewhere:
            if config.cluster_engine is not None:
                raise ConfigError(
                    f"rollout.workflow.workers goes with the backbones local and debug, and this is {config.backbone}",
                    hint="name a command: episodes run on the cluster's own machines",
                )
            return workers_workflow(elsewhere)
        case _:
            pass
    return import_class(config.rollout.workflow, key="rollout.workflow", base=Workflow, base_dir=base_dir)


def _tasks(config: AstuneConfig, base_dir: Path | None, tell: Callable[[str], object], with_tasks: bool) -> TaskSplits:
    reader = open_task_reader(config.task_reader, base_dir=base_dir)
    return reader.read(tell) if with_tasks else TaskSplits([], [])
