"""Task generation from documents and from example tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from astune.app.console import Console
from astune.app.data_report import report_html
from astune.app.evaluation import measure
from astune.app.experiment import Experiment
from astune.config import AstuneConfig
from astune.config.output_file import require_output, write_whole
from astune.config.strict import changed
from astune.data_generator import (
    Made,
    Material,
    OnProgress,
    held_out_beside,
    make_tasks,
    write_tasks,
)
from astune.helper_model import HelperModel
from astune.launcher.companion import CompanionFlags
from astune.rollout import RolloutObserver
from astune.schema import Task, TaskReaderError
from astune.task_reader.data_reader import SUCCESS_RATE, material_of


def read(config: AstuneConfig, documents: Sequence[Path], seeds: Path | None) -> Material:
    """Read the documents or examples from which tasks are generated. Raises TaskReaderError if it cannot be read."""
    if seeds is not None and not seeds.is_file():
        raise TaskReaderError(f"there is no file {seeds}", hint="name a JSONL file of example tasks")
    return material_of(config, documents, seeds)


def require_outputs(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse, before anything is asked, an `out` whose files cannot be written or would replace an input. Raises
    ConfigError if one of them is a folder or an input, or the folder cannot be written."""
    for path in (out, held_out_beside(out), report_beside(out)):
        require_output(path, inputs)


async def make(config: AstuneConfig, material: Material, out: Path, on_progress: OnProgress) -> Made:
    """Generate tasks and write them: training tasks to `out`, validation tasks and the report beside it. Raises
    AstuneError if the helper model does not answer, no task was accepted, or a file cannot be written."""
    model = HelperModel(config.helper_model)
    made = await make_tasks(config.task_reader.data_generation, material, model, config.sandbox, on_progress)
    write_tasks(out, made.training)
    write_tasks(held_out_beside(out), made.held_out)
    write_whole(report_beside(out), report_html(made, out.name))
    return made


def report_beside(out: Path) -> Path:
    """The report that belongs to the file of tasks `out`."""
    return out.with_name(f"{out.stem}.report.html")


def with_difficulty(
    experiment: Experiment,
    tasks: Sequence[Task],
    tries: int,
    console: Console,
    observed: Callable[[int], AbstractContextManager[RolloutObserver]],
) -> list[Task]:
    """Return the tasks with `metadata.success_rate`: the fraction of `tries` episodes in which the experiment's model,
    workflow and judge succeed. Tasks that could not be measured are omitted. Raises AstuneError if something that the
    experiment needs is missing."""
    config = changed(experiment.config, trainer={"validation": {"num_repeat": tries, "max_tasks": None}})
    measured = replace(experiment, config=config)
    found = measure(measured, CompanionFlags(), console, observed, tasks)
    successes: dict[str, list[bool]] = defaultdict(list)
    for episode in found.episodes:
        successes[episode.task.task_id].append(episode.reward is not None and episode.reward.is_success)
    rates = {name: sum(each) / len(each) for name, each in successes.items()}
    return [
        replace(task, metadata=task.metadata | {SUCCESS_RATE: rates[task.task_id]})
        for task in tasks
        if task.task_id in rates
    ]
