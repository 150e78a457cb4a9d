"""Live display of a run: a self-updating panel on a terminal, one plain line per step elsewhere.

It reads `Progress` and draws at most four times a second, from its own thread, so that neither the event loop nor the
trainer ever waits for a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.app.progress import PHASES, Measurement, Progress
from astune.config.schema import AstuneConfig
from astune.runs import RunDirectory, balance_of
from astune.runs.held_out import success_of
from astune.runs.interval import rate_text
from astune.schema import TokenBalance, visible

REFRESHES_PER_SECOND = 4
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#@"


@contextmanager
def open_display(
    config: AstuneConfig, run: RunDirectory, *, validation_tasks: int = 0, console: Console | None = None
) -> Iterator[Progress]:
    """Show the progress of the run while the block runs; the value is the observer for the backbone.

    A resumed run shows its earlier steps, too.
    """
    console = console or Console()
    trainer = config.trainer
    checkpoint = run.checkpoints.latest()
    progress = Progress(
        total_steps=trainer.total_steps,
        first_step=checkpoint.step if checkpoint else 0,
        episodes_of={
            "rollout": trainer.tasks_per_step * config.rollout.num_repeat,
            "validation": min(validation_tasks, trainer.validation.max_tasks or validation_tasks)
            * trainer.validation.num_repeat,
        },
    )
    for line in run.metrics():
        if checkpoint is not None and line.step <= checkpoint.step:
            progress.remember(Measurement(line.step, line.kind, line.metrics))

    progress.say = say = console.say
    if trainer.total_steps <= progress.first_step:
        say(f"step {progress.first_step} was the last one; --set trainer.total_steps=N trains up to step N")
    if console.is_terminal and not console.is_dumb_terminal:
        panel = LivePanel(progress, f"{run.path.parent.name} · {config.model.path} · {config.backbone}")
        with Live(panel, console=console, refresh_per_second=REFRESHES_PER_SECOND):
            yield progress
        return

    def tell(measurement: Measurement) -> None:
        say(plain_line(progress, measurement))
        if progress.first_failure is not None:
            say(f"  first failure: {progress.first_failure}")

    say(f"run {run.path}: step {progress.step} of {trainer.total_steps}")
    progress.tell = tell
    yield progress


class LivePanel:
    """Panel that renders `progress` at the moment of drawing."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._title = title

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        inner = max(8, options.max_width - 4)
        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(style="bold cyan", no_wrap=True)
        rows.add_column(ratio=1, overflow="fold")
        curve_width = max(4, min(40, inner - 34))
        blocks = _ASCII_BLOCKS if options.ascii_only else _BLOCKS
        for label, content in (
            ("step", _step_line(progress)),
            ("train", _reward_line(progress.train, curve_width, blocks)),
            ("held-out", _reward_line(progress.validation, curve_width, blocks)),
            ("episodes", _episodes_line(progress)),
            ("tokens/s", _rates_line(progress)),
            ("seconds", _phases_line(progress)),
            ("mismatch", _mismatch_line(progress.train)),
            ("balance", _balance_line(progress.balance())),
        ):
            rows.add_row(Text(label), content)
        if progress.first_failure is not None:
            rows.add_row(Text("failure"), Text(visible(progress.first_failure), style="red"))
        bar = ProgressBar(total=max(1, progress.total_steps), completed=progress.step, width=inner)
        stack = Table.grid(expand=True)
        stack.add_row(bar)
        stack.add_row(rows)
        yield Panel(stack, title=Text(self._title, overflow="ellipsis"), border_style="cyan")


def plain_line(progress: Progress, measurement: Measurement) -> str:
    """Format one line of metrics for a log file."""
    parts = [f"step {measurement.step}/{progress.total_steps}"]
    rewards = "reward {} success {}".format(*_rewards(measurement))
    parts.append(rewards if measurement.split == "train" else f"held-out {rewards}")
    finished, failed = measurement.get("episodes/finished"), measurement.get("episodes/failed_attempts")
    if not math.isnan(finished):
        parts.append(f"episodes {finished:.0f} finished {0 if math.isnan(failed) else failed:.0f} failed")
    read, written = measurement.get("engine/tokens_per_s_in"), measurement.get("engine/tokens_per_s_out")
    if not math.isnan(written):
        parts.append(f"tokens/s {read:.0f} in {written:.0f} out")
    seconds = {name: measurement.get(f"time/{name}_s") for name in PHASES}
    parts.append(" ".join(f"{name} {value:.1f} s" for name, value in seconds.items() if not math.isnan(value)))
    if measurement.split == "train":
        parts.append(f"balance {_balance_line(balance_of(measurement.metrics)).plain}")
        if progress.eta_s is not None:
            parts.append(f"{duration(progress.eta_s)} left")
    return " | ".join(part for part in parts if part)


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Draw values as blocks of rising height, averaged down to `width`; NaN is a gap.

    The scale is 0 to 1, widened if a value lies outside it.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    low, high = min(0.0, *finite), max(1.0, *finite)
    columns = min(width, len(values))
    edges = [round(index * len(values) / columns) for index in range(columns + 1)]
    bars: list[str] = []
    for start, end in pairwise(edges):
        here = [value for value in values[start:end] if math.isfinite(value)]
        height = (fmean(here) - low) / (high - low) if here else None
        bars.append(" " if height is None else blocks[min(len(blocks) - 1, int(height * len(blocks)))])
    return "".join(bars)


def duration(seconds: float) -> str:
    """`1:05`, or `1:02:03` from an hour on."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _step_line(progress: Progress) -> RenderableType:
    text = Text(f"{progress.step}/{progress.total_steps}", style="bold")
    text.append(f"  {duration(progress.elapsed_s)} so far", style="not bold")
    if progress.eta_s is not None and progress.step < progress.total_steps:
        text.append(f", about {duration(progress.eta_s)} left", style="not bold")
    if progress.phase:
        text.append(f"  {progress.phase}", style="not bold magenta")
    return text


def _reward_line(measurements: list[Measurement], width: int, blocks: str) -> Text:
    if not measurements:
        return Text("not measured yet", style="dim")
    last = measurements[-1]
    text = Text(sparkline([each.get("reward/mean") for each in measurements], width, blocks), style="green")
    reward, success = _rewards(last)
    text.append(f" reward {reward}", style="bold default")
    text.append(f"  success {success}", style="bold default")
    if last.split == "validation":
        text.append(f"  after step {last.step}", style="dim")
    return text


def _episodes_line(progress: Progress) -> Text:
    waits = progress.waits()
    doing = ", ".join(f"{count} {what}" for what, count in waits.most_common())
    text = Text(f"{waits.total()} running")
    if doing:
        text.append(f" ({doing})", style="dim")
    text.append(f"  {progress.finished} finished", style="green")
    text.append(f"  {progress.failed} failed", style="red" if progress.failed else "default")
    text.append(f"  {progress.waiting} waiting")
    return text


def _rates_line(progress: Progress) -> Text:
    rates = progress.tokens_per_s()
    if rates is None:
        return Text("not measured yet", style="dim")
    return Text(f"{rates[0]:,.0f} in  {rates[1]:,.0f} out")


def _phases_line(progress: Progress) -> Text:
    """Format this step's phases; dimmed, the previous step's duration of phases that have not started."""
    now, before = progress.phase_seconds(), progress.last_phase_seconds()
    text = Text()
    for name in dict.fromkeys([name for name in PHASES if name in now or name in before] + list(now)):
        style = "bold magenta" if name == progress.phase else ("default" if name in now else "dim")
        text.append(f"{name} {now.get(name, before.get(name, 0.0)):.1f}  ", style=style)
    return text


def _mismatch_line(measurements: list[Measurement]) -> Text:
    """Distance of the trainer's log-probabilities from the engine's; see `astune check numerics`."""
    mean = measurements[-1].get("train/logprob_diff_mean") if measurements else math.nan
    if math.isnan(mean):
        return Text("not measured yet", style="dim")
    last = measurements[-1]
    return Text(f"{mean:.2g} mean  {last.get('train/logprob_diff_p99'):.2g} p99  KL {last.get('train/engine_kl'):.2g}")


def _balance_line(balance: TokenBalance | None) -> Text:
    """`100 sampled = 60 trained + 10 masked + 30 dropped`, with the reasons of the last two."""
    if balance is None:
        return Text("no step yet", style="dim")
    text = Text(f"{balance.sampled:,} sampled = {balance.trained:,} trained")
    for name, account in (("masked", balance.masked), ("dropped", balance.dropped)):
        text.append(f" + {account.total():,} {name}")
        if account:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in account.most_common())
            text.append(f" ({reasons})", style="dim")
    if balance.difference:
        text.append(f"  OFF BY {balance.difference:,}", style="bold red")
    return text


def _rewards(measurement: Measurement) -> tuple[str, str]:
    """Mean reward and success; of a measurement, that of all its episodes, as the best model is chosen by."""
    of_all = measurement.split == "validation"
    success = success_of(measurement.metrics) if of_all else measurement.get("reward/success_rate")
    return rate_text(measurement.get("reward/mean")), rate_text(success)
