"""Evaluation of a model on the validation tasks: success with a 95 % Wilson interval, reward."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from astune.app.beside import made_ready
from astune.app.console import Console
from astune.app.execution import silence_progress_bars
from astune.app.experiment import Experiment
from astune.app.run import Run, checkpoint_of
from astune.config import AstuneConfig
from astune.config.bases import identity
from astune.config.policies import PolicyConfig
from astune.config.strict import changed
from astune.engine.adapters import base_of, policies_in
from astune.launcher.companion import CompanionFlags
from astune.rollout import NullObserver, RolloutObserver
from astune.runs import checkpoint_around, resolve_run
from astune.runs.interval import OfTasks
from astune.schema import ConfigError, Episode, EpisodeGroup, RunStoreError, Task

if TYPE_CHECKING:
    from astune.backbone.parts import UserParts


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation; `dropped` counts tasks that could not be measured, by reason."""

    model: str
    """The measured model, in words."""
    episodes: list[Episode]
    """Every finished episode of the measured tasks."""
    n_tasks: int
    """Number of measured tasks."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of tasks that could not be measured, by reason."""

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return sum(episode.reward is not None and episode.reward.is_success for episode in self.episodes)

    @property
    def success_rate(self) -> float:
        """Part of the episodes that succeeded; NaN where none finished."""
        return self.successes / len(self.episodes) if self.episodes else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the success rate on tasks like these; several episodes of a task count as fewer."""
        of_task: defaultdict[str, list[bool]] = defaultdict(list)
        for episode in self.episodes:
            of_task[episode.task.task_id].append(episode.reward is not None and episode.reward.is_success)
        return OfTasks.of((sum(each), len(each)) for each in of_task.values()).interval

    @property
    def mean_reward(self) -> float:
        """Mean reward; NaN if no episode finished."""
        return fmean(episode.raw_reward for episode in self.episodes) if self.episodes else math.nan

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Evaluation({self.model!r}, success {self.success_rate:.3f} [95 % {low:.3f} to {high:.3f}], "
            f"{len(self.episodes)} episodes of {self.n_tasks} tasks)"
        )


def measure(
    experiment: Experiment,
    flags: CompanionFlags,
    console: Console,
    observed: Callable[[int], AbstractContextManager[RolloutObserver]] = lambda _: nullcontext(NullObserver()),
    tasks: Sequence[Task] | None = None,
) -> Evaluation:
    """Run every validation task of the experiment with its model. Raises AstuneError if something that the experiment
    needs is missing.

    Args:
        tasks: tasks to measure instead of the experiment's validation tasks, which are then not read.
        observed: receives the number of episodes, and returns a context whose value observes each of them.
    """
    from astune.backbone.local import evaluate
    from astune.backbone.parts import load_parts

    silence_progress_bars()
    config, groups = experiment.config, list[EpisodeGroup]()

    def load() -> UserParts:
        parts = load_parts(config, experiment.base_dir, with_tasks=tasks is None)
        return parts if tasks is None else replace(parts, validation_tasks=list(tasks))

    with made_ready(config, flags, console, load, takes_weights=False) as ready:
        validation = config.trainer.validation
        n_episodes = len(ready.parts.validation_tasks[: validation.max_tasks]) * validation.num_repeat

        async def work() -> None:
            with observed(n_episodes) as observer:
                groups.extend(await evaluate(config, ready.parts, observer))

        ready.run(work())
    measured = [group for group in groups if group.dropped is None]
    return Evaluation(
        described_model(config),
        [episode for group in measured for episode in group.episodes],
        len(measured),
        Counter(group.dropped for group in groups if group.dropped is not None),
    )


def described_model(config: AstuneConfig) -> str:
    """Name what is measured: a server, or the model with the folders of its policies.

    ./base, wolf and village of RUN/checkpoints/step-000004/model
    """
    if config.engine.base_url:
        return f"the model at {', '.join(config.engine.base_url)}"
    begun = {name: path for name, policy in config.models.items() if (path := policy.start or policy.base)}
    names_in: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in begun.items():
        names_in[path.removesuffix(f"/{name}")].append(name)
    return ", ".join([config.model.path, *(f"{' and '.join(names)} of {path}" for path, names in names_in.items())])


def with_model(config: AstuneConfig, model: str | PathLike[str] | Run) -> AstuneConfig:
    """The same with another model: a folder, a hub id, a checkpoint, or the best model of a run.

    Of a run with several policies it is the adapters and models that the checkpoint has.

    Raises:
        ConfigError: what is measured is what a server answers with, or the run has policies that `models` has not or
            that are adapters on another model.
        RunStoreError: the run has no model, or its files are not as they were written.
    """
    if config.engine.base_url:
        raise ConfigError(
            f"--model is {model}, but what is measured is what the servers at engine.base_url answer with",
            hint="leave --model out, or add --set engine.base_url=[]",
        )
    path = _path_of(model.path if isinstance(model, Run) else model)
    if policies := policies_in(Path(path)):
        return _with_policies(config, policies, Path(path))
    return changed(config, model={"path": path})


def _with_policies(config: AstuneConfig, policies: Sequence[str], folder: Path) -> AstuneConfig:
    missing = [name for name in policies if name not in config.models]
    if missing:
        raise ConfigError(
            f"{folder} has the policy {missing[0]}, and the experiment's `models` has none of that name",
            hint="measure with the experiment that the run was started with, or export one policy: astune export "
            f"RUN --policy {missing[0]} --to DIR",
        )
    begun = {name: _begun(config, name, folder / name) for name in policies}
    return config.model_copy(update={"models": config.models | begun})


def _begun(config: AstuneConfig, name: str, folder: Path) -> PolicyConfig:
    """A policy of the experiment that begins with what a run made of it: an adapter on its base, or a whole model."""
    policy = config.models[name]
    if (folder / "config.json").is_file():
        return policy.model_copy(update={"path": str(folder), "adapter": None})
    base, own = base_of(folder), policy.base or config.model.path
    key = "model.path" if policy.base is None else f"models.{name}.path"
    if base != own and identity(base) != identity(own):
        raise ConfigError(
            f"the policy in {folder} is an adapter on {base}, and {key} is {own}",
            hint=f"add --set {key}={base}; where both are the same model in two places, change "
            "base_model_name_or_path in the adapter_config.json there",
        )
    return policy.model_copy(update={"path" if policy.base is None else "adapter": str(folder)})


def _path_of(model: str | PathLike[str]) -> str:
    """The model of a checkpoint, or the best one of a run, where one is named. Raises RunStoreError if the run has
    none, or its files are not as they were written."""
    path = Path(model).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        if (checkpoint := checkpoint_around(path)) is not None:
            checkpoint.require_whole("model")
        return str(path)
    try:
        resolve_run(path, prefer="model")
    except RunStoreError:  # it names no run: a hub id, or a model that is built in
        return str(model)
    return str(checkpoint_of(path).model)
