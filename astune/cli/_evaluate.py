"""Measuring a model on the held-out tasks, without training: success with a 95 % Wilson interval, reward, turns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from astune.cli._beside import made_ready
from astune.cli._errors import EXIT_FAILED
from astune.cli._report_data import mean_baseline, wilson_interval
from astune.config import AstuneConfig, load_config
from astune.launcher.companion import CompanionFlags
from astune.schema import ConfigError, Episode, EpisodeGroup, RunStoreError, Task


def evaluate_model(conf: Path, model: str | None, overrides: Sequence[str], flags: CompanionFlags) -> int:
    config = load_config(conf, overrides)
    from astune.backbone.local import evaluate
    from astune.backbone.parts import load_parts
    from astune.cli._train import silence_progress_bars

    silence_progress_bars()
    console = Console()
    if model is not None:
        config = _with_model(config, model)
    groups: list[EpisodeGroup] = []
    load = partial(load_parts, config, conf.parent)
    with made_ready(config, flags, console, load, takes_weights=False) as ready:
        n_tasks = len(ready.parts.validation_tasks[: config.trainer.validation.max_tasks])

        async def work() -> None:
            with Progress(console=console, transient=True) as progress:
                observer = _Bar(progress, n_tasks * config.trainer.validation.num_repeat)
                groups.extend(await evaluate(config, ready.parts, observer))

        ready.run(work())
    episodes = [episode for group in groups if group.dropped is None for episode in group.episodes]
    dropped = [group.dropped for group in groups if group.dropped is not None]
    name = f"the model at {', '.join(config.engine.base_url)}" if config.engine.base_url else config.model.path
    console.print(_table(name, episodes, len(groups) - len(dropped)))
    for reason in dict.fromkeys(dropped):
        console.print(f"{dropped.count(reason)} tasks not measured: {reason}", markup=False, soft_wrap=True)
    return 0 if episodes else EXIT_FAILED


def _with_model(config: AstuneConfig, model: str) -> AstuneConfig:
    if config.engine.base_url:
        raise ConfigError(
            f"--model is {model}, but what is measured is what the servers at engine.base_url answer with",
            hint="leave --model out, or add --set engine.base_url=[]",
        )
    return config.model_copy(update={"model": config.model.model_copy(update={"path": _path_of(model)})})


class _Bar:
    """Shows how many episodes are finished; a `RolloutObserver`."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("episodes", total=total)

    def on_started(self, episode_id: str, task: Task) -> None: ...

    def on_waits_for(self, episode_id: str, what: str) -> None: ...

    def on_finished(self, episode: Episode) -> None:
        self._progress.advance(self._bar)

    def on_attempt_failed(self, episode: Episode) -> None: ...


def _path_of(model: str) -> str:
    """The best model of a run, where a run or an experiment is named."""
    from astune.cli._past_runs import best_checkpoint
    from astune.runs import resolve_run

    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return str(path)
    try:
        return str(best_checkpoint(resolve_run(path, prefer="model")).model)
    except RunStoreError:
        return model


def _table(name: str, episodes: Sequence[Episode], tasks: int) -> Table:
    n = len(episodes)
    successes = sum(episode.reward is not None and episode.reward.is_success for episode in episodes)
    low, high = wilson_interval(successes, n)
    table = Table("measured", "value", title=f"held-out tasks, {name}", title_justify="left")
    table.add_row("success", f"{successes / n:.3f}   [95 % {low:.3f} to {high:.3f}]" if n else "no episode finished")
    if n:
        table.add_row("mean reward", f"{fmean(episode.raw_reward for episode in episodes):.3f}")
        if (baseline := mean_baseline(episode.task for episode in episodes)) is not None:
            table.add_row("a simple rule", f"{baseline:.3f}")
        truncated = sum(episode.status == "truncated" for episode in episodes)
        table.add_row("truncated", f"{truncated / n:.3f}")
    table.add_row("episodes", f"{n} of {tasks} tasks")
    return table
