"""`astune eval`: a bar while it measures, and a table of what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from astune.app.console import Console
from astune.app.evaluation import Evaluation, measure, with_model
from astune.app.experiment import Experiment
from astune.cli._errors import EXIT_FAILED
from astune.launcher.companion import CompanionFlags
from astune.rollout import NullObserver, RolloutObserver
from astune.runs.report import mean_baseline
from astune.schema import Episode


def evaluate_model(conf: Path, model: str | None, overrides: Sequence[str], flags: CompanionFlags) -> int:
    """Measure, print the table, and return the exit status."""
    experiment, console = Experiment.of(conf, overrides, appworld=flags.appworld), Console()
    if model is not None:
        experiment = Experiment(with_model(experiment.config, model), conf)

    measured = measure(experiment, flags, console, lambda n: episodes_bar(console, n))
    console.say(f"held-out tasks, {measured.model}")
    console.print(_table(measured))
    for reason, count in measured.dropped.items():
        console.say(f"{count} tasks not measured: {reason}")
    return 0 if measured.episodes else EXIT_FAILED


@contextmanager
def episodes_bar(console: Console, n_episodes: int) -> Iterator[RolloutObserver]:
    """A bar of finished episodes, while they run."""
    with Progress(console=console, transient=True) as progress:
        yield _Bar(progress, n_episodes)


class _Bar(NullObserver):
    """Shows how many episodes are finished."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("episodes", total=total)

    def on_finished(self, episode: Episode) -> None:
        self._progress.advance(self._bar)


def _table(measured: Evaluation) -> Table:
    n = len(measured.episodes)
    low, high = measured.interval
    rate = f"{measured.success_rate:.3f}   [95 % {low:.3f} to {high:.3f}]" if n else "no episode finished"
    table = Table("measured", "value")
    table.add_row("success", rate)
    if n:
        table.add_row("mean reward", f"{measured.mean_reward:.3f}")
        if (baseline := mean_baseline(episode.task for episode in measured.episodes)) is not None:
            table.add_row("a simple rule", f"{baseline:.3f}")
        truncated = sum(episode.status == "truncated" for episode in measured.episodes)
        table.add_row("truncated", f"{truncated / n:.3f}")
    table.add_row("episodes", f"{n} of {measured.n_tasks} tasks")
    return table
