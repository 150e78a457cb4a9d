"""The user's parts, made from the configuration before a model is loaded: tasks, workflow, judge,
algorithm and engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astune.algorithm import Algorithm, load_algorithm
from astune.config.schema import AstuneConfig
from astune.engine.own import EngineBase, load_engine_class
from astune.schema import Faults, Task
from astune.task_judge import JudgeBase, load_judge
from astune.task_reader import TaskSplits, open_task_reader
from astune.trackers import NamedTracker
from astune.workflow import Workflow
from astune.workflow.loading import load_workflow


@dataclass(frozen=True, slots=True)
class UserParts:
    """Parts of an experiment that the user provides. `judge` is None where the workflow returns its own reward.

    There is always a training task, except in a plan made before the tasks are known.
    """

    training_tasks: list[Task]
    validation_tasks: list[Task]
    workflow: type[Workflow]
    judge: JudgeBase | None
    algorithm: Algorithm
    engine: type[EngineBase] | None = None
    """None where the engine is one of astune's."""
    trackers: tuple[NamedTracker, ...] = ()
    """Tag of a run; a dry run is not tracked."""


def load_parts(
    config: AstuneConfig,
    base_dir: Path | None,
    tell: Callable[[str], object] = lambda _: None,
    *,
    with_tasks: bool = True,
    workers_connect_here: bool = True,
) -> UserParts:
    """Import and read what the configuration names; `base_dir` is the folder of the YAML file.

    `tell` receives progress messages about tasks; `with_tasks` False skips them. `workers_connect_here` is False where
    another process is the one that `astune worker` connects to.

    Raises:
        ConfigError: a name does not import, or is not what it should be; or several things are wrong.
        TaskReaderError: tasks cannot be read, or a held-out task is also trained on.
    """
    faults = Faults()
    workflow = faults.collect(lambda: load_workflow(config, base_dir, workers_connect_here=workers_connect_here))
    judge = faults.collect(lambda: load_judge(config, base_dir=base_dir))
    algorithm = faults.collect(lambda: load_algorithm(config, base_dir))
    engine = faults.collect(lambda: load_engine_class(config, base_dir))
    tasks = faults.collect(lambda: _tasks(config, base_dir, tell, with_tasks))
    if faults or workflow is None or algorithm is None or tasks is None:
        raise faults.error()
    return UserParts(tasks.training, tasks.validation, workflow, judge, algorithm, engine)


def _tasks(config: AstuneConfig, base_dir: Path | None, tell: Callable[[str], object], with_tasks: bool) -> TaskSplits:
    reader = open_task_reader(config.task_reader, base_dir=base_dir, experiment=config)
    return reader.read(tell) if with_tasks else TaskSplits([], [])
