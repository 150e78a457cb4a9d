"""`astune sweep`: trials one after another or on a Ray cluster, and their results as a table and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic

from rich import box
from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.app.html_page import N_CURVES, page, table
from astune.app.sweep import Trial, found, log_of, on_ray, run_trial, trials_of
from astune.cli._svg import Line, svg_chart
from astune.runs import HeldOut, RunDirectory, last_of, write_atomic
from astune.schema import AstuneError, ConfigError

_READ_HIGH = "The best of several measurements is chosen by them, and reads high."
_DONE = {"finished": "finished", "unfinished": "resumes", "running": "is being trained", "missing": "not begun"}


def sweep(
    conf: Path, over: Sequence[str], seeds: int, overrides: Sequence[str], ray: tuple[int, int] | None, *, dry_run: bool
) -> int:
    """Train every trial that is not finished, and report; returns the exit status, 1 where a trial failed.

    Args:
        ray: CPUs and GPUs of each run on a Ray cluster; None runs one after another here.
    """
    console = Console()
    trials = trials_of(conf, over, seeds, overrides)
    on_cluster = next((trial.config.backbone for trial in trials if trial.config.cluster_engine is not None), None)
    if ray is not None and on_cluster is not None:
        raise ConfigError(
            f"--ray runs whole trials on the cluster, and the backbone {on_cluster} uses it itself",
            hint="leave --ray out: the trials then run one after another, each on the whole cluster",
        )
    for trial in trials:
        console.say(f"{trial.name}: {_DONE[trial.state]}{f' ({trial.run})' if trial.run is not None else ''}")
    if dry_run:
        console.say(f"{_counted(trials)} in {trials[0].folder}; nothing was started")
        return 0
    todo = [trial for trial in trials if trial.state != "finished"]
    ended = _here(todo, console) if ray is None else on_ray(todo, cpus=ray[0], gpus=ray[1])
    failed: list[Trial] = []
    try:
        for trial, status in ended:
            [now] = found([trial])
            if status != 0 or now.state != "finished":
                failed.append(trial)
            outcome = _failure(now, status) if trial in failed else _outcome(now)
            console.say(f"{trial.name}: {outcome}")
    except KeyboardInterrupt:
        console.say("interrupted; the same command resumes it")
        raise
    trials = found(trials)
    _report(trials, console)
    return 1 if failed else 0


def _here(trials: Sequence[Trial], console: Console) -> Iterator[tuple[Trial, int]]:
    for number, trial in enumerate(trials, 1):
        began = monotonic()
        with console.status("") as status:

            def look(trial: Trial = trial, number: int = number, began: float = began) -> None:
                minutes = (monotonic() - began) / 60
                status.update(f"{number} of {len(trials)}: {trial.name} · {_progress(trial)} · {minutes:.1f} min")

            look()
            ended = run_trial(trial, look)
        yield trial, ended


def _progress(trial: Trial) -> str:
    [now] = found([trial])
    last = last_of(RunDirectory.look_at(now.run).metrics_path, "train") if now.run is not None else None
    return f"step {last.step} of {trial.config.trainer.total_steps}" if last is not None else "starting"


def _report(trials: Sequence[Trial], console: Console) -> None:
    """Print the table, and write it with the curves as `report.html` into the sweep's folder."""
    measured = {trial.name: _held_out(trial, console.say) for trial in trials}
    rows = sorted(_groups(trials, measured), key=lambda row: row.key, reverse=True)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("settings", overflow="fold")  # a cut may hide the difference between rows
    for title in ("runs", "held-out before", "best", "last"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(Text(row.name), row.counted, row.first, row.best, row.last)
    console.print(shown)
    console.say(_READ_HIGH)
    path = trials[0].folder / "report.html"
    write_atomic(path, _page(trials, measured, rows).encode(errors="replace"))
    console.say(f"{path}\nevery curve: astune view {trials[0].folder}")


def _held_out(trial: Trial, say: Callable[[str], object]) -> HeldOut | None:
    """Validation scores so far; None if there are none, or they cannot be read, which `say` receives."""
    try:
        return trial.held_out()
    except AstuneError as error:
        say(f"{trial.name}: {error}")
        return None


class _Row:
    """Trials that differ in their seeds alone: mean and standard deviation over those that are finished."""

    def __init__(self, name: str, trials: Sequence[Trial], scores: Sequence[HeldOut]) -> None:
        self.name = name
        self.counted = f"{sum(trial.state == 'finished' for trial in trials)} of {len(trials)}"
        self.key = fmean(score.last for score in scores) if scores else -1.0
        self.first, self.best, self.last = (
            _spread([getattr(score, name) for score in scores]) for name in ("first", "best", "last")
        )


def _groups(trials: Sequence[Trial], measured: Mapping[str, HeldOut | None]) -> Iterator[_Row]:
    for name in dict.fromkeys(trial.group for trial in trials):
        members = [trial for trial in trials if trial.group == name]
        finished = [measured[trial.name] for trial in members if trial.state == "finished"]
        yield _Row(name, members, [score for score in finished if score is not None])


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _page(trials: Sequence[Trial], measured: Mapping[str, HeldOut | None], rows: Sequence[_Row]) -> str:
    name = trials[0].config.experiment_name
    groups = [row.name for row in rows]
    readable = [trial for trial in trials if measured[trial.name] is not None]
    curves = [_curve(row.name, index, readable) for index, row in enumerate(rows)]
    keys = "".join(
        f'<li><span class="key line-{index % N_CURVES}"></span> {escape(name)}</li>'
        for index, name in enumerate(groups)
    )
    columns = ["settings", "#runs", "#held-out before", "#best", "#last"]
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="faint">{len(trials)} trials; success on the held-out tasks, mean ± standard deviation over the '
        f"finished runs of a row, ordered by the last measurement. {_READ_HIGH}</p>",
        table(columns, ([escape(row.name), row.counted, row.first, row.best, row.last] for row in rows)),
        "<h2>Held-out success by step</h2>",
        '<p class="faint">The mean of a row ends where one of its runs does; the band is one standard deviation.</p>',
        f'<figure>{svg_chart("held-out success", curves, from_zero=True)}</figure><ul class="keys">{keys}</ul>',
        "<h2>Runs</h2>",
        table(
            ["trial", "state", "#best", "#last", "folder"], (_cells(trial, measured[trial.name]) for trial in trials)
        ),
    ]
    return page(name, "".join(body))


def _cells(trial: Trial, score: HeldOut | None) -> list[str]:
    numbers = ["–", "–"] if score is None else [f"{score.best:.3f} (step {score.best_step})", f"{score.last:.3f}"]
    return [escape(trial.name), _DONE[trial.state], *numbers, escape(trial.run.name if trial.run else "–")]


def _curve(group: str, index: int, trials: Sequence[Trial]) -> Line:
    """The mean over seeds at each step, with a band of one standard deviation where there are several.

    It ends where the first of them does: the mean of those that go on is that of others.
    """
    values: dict[int, list[float]] = {}
    members = 0
    for trial in trials:
        if trial.group == group and trial.run is not None:
            members += 1
            for line in RunDirectory.look_at(trial.run).metrics():
                if (score := HeldOut.of([line])) is not None:
                    values.setdefault(line.step, []).append(score.last)
    steps = [step for step in sorted(values) if len(values[step]) == members]
    several = steps if members > 1 else []
    spread = {step: stdev(values[step]) for step in several}
    means = {step: fmean(values[step]) for step in steps}
    band = [(step, means[step] - spread[step], means[step] + spread[step]) for step in several]
    return Line(group, f"line-{index % N_CURVES}", [(step, means[step]) for step in steps], band)


def _outcome(trial: Trial) -> str:
    score = _held_out(trial, lambda _: None)  # the report names what cannot be read
    if score is None:
        return "finished; without a score on held-out tasks"
    return f"finished; held-out {score.first:.3f} -> {score.last:.3f}, best {score.best:.3f} in step {score.best_step}"


def _failure(trial: Trial, status: int) -> str:
    if trial.run is None and not trial.is_current:
        return f"not trained: {trial.conf} was changed while the sweep ran; the same command trains its new settings"
    return f"failed with status {status}; see {log_of(trial)}"


def _counted(trials: Sequence[Trial]) -> str:
    finished = sum(trial.state == "finished" for trial in trials)
    return f"{len(trials)} trials, {finished} of them finished,"
