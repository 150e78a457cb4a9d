"""Several runs in one table: the start, the best prompts, the trained model, and the one trained from the best prompts.

All were measured on the same held-out tasks, or are not compared; other differences of the measurements are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.config.saved import load_saved
from astune.runs import RunDirectory, StepSummary, resolve_run
from astune.runs.interval import interval_text, rate_text
from astune.runs.report import BEST_PROMPTS, RunReport, read_report
from astune.schema import RunStoreError, visible


@dataclass(frozen=True, slots=True)
class Measured:
    """A model with its prompts, as a run measured it on the held-out tasks."""

    what: str
    summary: StepSummary
    report: RunReport


def show_beside(runs: Sequence[str]) -> int:
    """Print the table; each run brings what it made, and the search, or else the first one, the start."""
    directories = [RunDirectory.open(resolve_run(run, prefer="training")) for run in runs]
    directories.sort(key=lambda each: not (each.path / BEST_PROMPTS).is_file())
    table = Table("", "held-out success", "95 % interval", "mean reward", "training")
    table.add_column("run", overflow="fold")
    rows = _rows(directories)
    for row in rows:
        summary = row.summary
        table.add_row(
            row.what,
            rate_text(summary.success_rate),
            interval_text(summary.interval),
            rate_text(summary.reward),
            "" if row is rows[0] else f"{row.report.trained_s:.0f} s",
            Text(visible(f"{row.report.experiment}/{row.report.path.name}")),
        )
    console = Console()
    console.print(table)
    console.print(f"each measured on the same {rows[0].summary.tasks} held-out tasks", highlight=False)
    for line in _measured_differently(directories):
        console.say(line, style="yellow")
    return 0


def _measured_differently(directories: Sequence[RunDirectory]) -> list[str]:
    """Name the settings of the measurements that differ, with the value of each run."""
    settings = [load_saved(each.config_path) for each in directories]
    measured: dict[str, list[float]] = {
        "temperature": [each.validation_temperature for each in settings],
        "num_repeat": [each.trainer.validation.num_repeat for each in settings],
    }
    return [
        f"measured with different trainer.validation.{key}: "
        + ", ".join(f"{value:g} in {run.path.name}" for value, run in zip(values, directories, strict=True))
        for key, values in measured.items()
        if len(set(values)) > 1
    ]


def _rows(directories: Sequence[RunDirectory]) -> list[Measured]:
    reports = [read_report(each, examples=0) for each in directories]
    found = [_found(each, report.prompts) for each, report in zip(directories, reports, strict=True) if report.prompts]
    rows: list[Measured] = []
    tasks: set[str] | None = None
    for directory, report in zip(directories, reports, strict=True):
        before, after = report.before, report.after
        if before is None or after is None:
            raise RunStoreError(
                f"{report.path} has no measurement before and after", hint="name runs that measured held-out tasks"
            )
        measured = _held_out(directory, before.step)
        if tasks is not None and measured != tasks:
            raise RunStoreError(
                f"{report.path} was measured on other held-out tasks than {reports[0].path}",
                hint="compare runs with the same validation tasks and trainer.validation.max_tasks",
            )
        tasks = measured
        rows += [] if rows else [Measured("start", before, report)]
        rows.append(Measured(_name(directory, report, found), after, report))
    return rows


def _name(directory: RunDirectory, report: RunReport, found: Sequence[dict[str, Any]]) -> str:
    """Results of the run; `found` are the best prompts of all searches."""
    if report.prompts is not None:
        return "best prompts"
    params = load_saved(directory.config_path).rollout.params
    from_best = any(each and each.items() <= params.items() for each in found)
    return "trained from the best prompts" if from_best else "trained"


def _found(directory: RunDirectory, path: Path) -> dict[str, Any]:
    """The prompts that a search found; empty where it found none better than those it began with."""
    try:
        best = dict(yaml.safe_load(path.read_text(encoding="utf-8"))["astune"]["rollout"]["params"])
        return {} if best.items() <= load_saved(directory.config_path).rollout.params.items() else best
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as cause:
        raise RunStoreError(f"{path} cannot be read: {cause!r}", hint="search again") from cause


def _held_out(directory: RunDirectory, step: int) -> set[str]:
    with directory.episodes() as episodes:
        return {row.task_id for row in episodes.list(step=step, split="validation")}
