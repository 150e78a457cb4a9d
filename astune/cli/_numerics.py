"""`astune check numerics`: the measures as a table, and the verdict with the cause in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.status import Status
from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.app.experiment import Experiment
from astune.backbone.base import RunObserver
from astune.cli._errors import EXIT_FAILED
from astune.launcher.companion import CompanionFlags
from astune.schema import Episode

if TYPE_CHECKING:
    from astune.numerics.check import NumericsReport
    from astune.numerics.suspects import Trial
    from astune.trainer.mismatch import Mismatch


ROWS = (
    "tokens",
    "mean difference",
    *("  p50", "  p90", "  p99", "  p999", "  max"),
    "KL, estimator k3",
    "KL, estimator k1",
    "evidence against the draws",
)


def check_numerics(conf: Path, overrides: Sequence[str], flags: CompanionFlags, *, steps: int, tasks: int) -> int:
    """Measure, print the tables, and return the exit status."""
    from astune.app import numerics

    console = Console()
    experiment = Experiment.of(conf, overrides, appworld=flags.appworld)
    report = numerics.check_numerics(experiment, flags, console, _shown(console), steps=steps, tasks=tasks)
    show_numerics(report, console)
    return 0 if report.passed else EXIT_FAILED


@contextmanager
def _shown(console: Console) -> Iterator[_Says]:
    with console.status("loading the model") as status:
        yield _Says(status)


class _Says(RunObserver):
    """Shows what is being done, and how many episodes have ended."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._phase = ""
        self._finished = 0

    def on_phase(self, phase: str) -> None:
        self._phase, self._finished = phase, 0
        self._status.update(phase)

    def on_finished(self, episode: Episode) -> None:
        self._finished += 1
        self._status.update(f"{self._phase}, {self._finished} episodes finished")


def show_numerics(report: NumericsReport, console: Console) -> None:
    """Print the table, what is beyond the limits, and why."""
    console.print(_table(report))
    if report.passed:
        console.print(Text("engine and trainer agree, as far as rounding lets them", style="bold green"))
        return
    for line in report.beyond:
        console.say(f"beyond the limit: {line}", style="bold red")
    cause = report.cause
    if cause is None:
        console.print(Text("none of what was tried explains it", style="bold red"))
    else:
        console.print(Text.assemble(("cause: ", "bold red"), (f"{cause.cause}: ", "bold"), cause.assumption))
        console.print(Text.assemble(("hint: ", "bold cyan"), cause.hint))
    console.print(_tried(report.trials))


def _table(report: NumericsReport) -> Table:
    """A column for each weights version of each step and one for its limits, a row for each measure."""
    table = Table(
        box=box.SIMPLE_HEAD, title=f"trainer less engine, log-probabilities, {report.dtype}", title_justify="left"
    )
    table.add_column("sampled with weights version")
    columns: list[list[str]] = []
    for step in report.steps:
        for version, part in step.mismatch.by_version().items():
            table.add_column(f"{version} (step {step.step})", justify="right")
            columns.append(_measures(part, step.evidence))
        table.add_column("limit", justify="right", style="dim")
        limits = step.limits
        columns.append(["", _number(limits.mean), "", "", _number(limits.p99), "", "", _number(limits.kl), ""])
        columns[-1].append(_number(limits.evidence))
    for name, *values in zip(ROWS, *columns, strict=True):
        table.add_row(name, *values)
    return table


def _measures(part: Mismatch, evidence: float) -> list[str]:
    """Cells in the order of ROWS."""
    numbers = [part.mean, *part.quantiles().values(), part.kl, part.kl_k1]
    return [f"{part.n_tokens:,}", *map(_number, numbers), f"{evidence:.1f}"]


def _tried(trials: Sequence[Trial]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="what was tried", title_justify="left")
    table.add_column("if", overflow="fold")
    table.add_column(trials[0].measure, justify="right")
    table.add_column("becomes", justify="right")
    for trial in trials:
        table.add_row(
            Text(f"{trial.cause}: {trial.assumption}"),
            _number(trial.before),
            _number(trial.after),
            style="bold" if trial.explains else None,
        )
    return table


def _number(value: float) -> str:
    """Two digits that count, as 0.0083 or 4.1e-06."""
    return f"{value:.2g}"
