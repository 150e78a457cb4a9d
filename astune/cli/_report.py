"""The end-of-run report: what was measured before and after, what the agent says now, where everything lies.

It is made of what the run's directory holds, so `astune report RUN` prints the same for any run at any time.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.cli._plots import reward_picture, terminal_curve
from astune.runs import RunDirectory, StepSummary
from astune.runs.interval import rate_text
from astune.runs.report import Comparison, RunReport, Transcript, accounts, read_report
from astune.schema import RunStoreError, TokenBalance, visible

SVG_WIDTH = 110
_SIDE_BY_SIDE_FROM = 72
_MAX_TURN_CHARACTERS = 700
_REMOTE_FONTS = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def report_run(run: RunDirectory, console: Console | None = None) -> RunReport:
    """Print the report of a run and save its pictures, `plots/reward.png` and `plots/report.svg`.

    Raises:
        RunStoreError: a file of the run cannot be read. Pictures that cannot be written are only reported.
    """
    report = read_report(run)
    console = console or Console()
    try:
        png = reward_picture(report)
        saved = [run.save_plot("reward.png", png)] if png is not None else []
        saved.append(run.save_plot("report.svg", report_svg(report).encode()))
        beside = [Text(f"picture   {_shown(path)}") for path in saved]
    except RunStoreError as error:
        beside = [Text(f"pictures could not be saved: {error}", style="yellow")]
    size = sum(run.removable().values())
    if report.status == "finished" and size:
        beside.append(Text(f"disk      {size / 1e6:,.0f} MB are only for resuming: astune clean {_shown(run.path)}"))
    draw_report(report, console, beside)
    return report


def draw_report(report: RunReport, console: Console, beside: Sequence[Text] = (), *, fold: bool = False) -> None:
    """Print the report; its last line is `summary_line`.

    Args:
        beside: lines on what lies in the run's folder now.
        fold: break lines that do not fit. A terminal does that itself, so that a path can be copied in one piece; a
            picture would lose their ends.
    """
    console.print()
    console.print(Rule(Text(f"ASTuner: {report.experiment}"), style="cyan"))
    if report.kind == "debug":
        console.print(Text("a debug run: its episodes are recorded, and nothing was trained", style="bold"))
    if report.status in ("failed", "interrupted", "killed"):
        reason = f": {visible(report.message)}" if report.message else ""
        console.print(Text(f"this run was {report.status} after step {report.last_step}{reason}", style="bold red"))
    elif report.status == "running":
        console.print(
            Text(f"this run is still running: its finished steps, up to step {report.last_step}", style="bold")
        )
    for part in _parts(report, console):
        console.print(part)
    lines = [*_path_lines(report), *beside, *map(Text, measured_lines(report))]
    for line in (*lines, Text(summary_line(report), style="bold green")):
        line.overflow = "fold"
        console.print(line, soft_wrap=not fold)


def report_svg(report: RunReport, *, width: int = SVG_WIDTH) -> str:
    """The report as an SVG picture of a terminal, which fetches nothing from anywhere."""
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    draw_report(report, console, fold=True)
    svg_format = _REMOTE_FONTS.sub("", CONSOLE_SVG_FORMAT).replace(
        "Fira Code, monospace", "Fira Code, ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
    )
    return console.export_svg(title=f"astune report {report.experiment}", code_format=svg_format)


def summary_line(report: RunReport) -> str:
    """`held-out success 0.02 -> 0.97 in 15 steps, 122 s`."""
    if report.kind == "debug":
        episodes = sum(each.episodes for each in report.training)
        return f"debug run of {episodes} {'episode' if episodes == 1 else 'episodes'}"
    if report.before is not None and report.after is not None:
        what = f"held-out success {rate_text(report.before.success_rate)} -> {rate_text(report.after.success_rate)}"
        steps = report.after.step
    elif report.training:
        first, last = report.training[0].success_rate, report.training[-1].success_rate
        what = f"training success {rate_text(first)} -> {rate_text(last)}"
        steps = report.last_step
    elif report.before is not None:
        what, steps = f"held-out success {rate_text(report.before.success_rate)}", report.before.step
    else:
        what, steps = "nothing measured", report.last_step
    return f"{what} in {steps} {'step' if steps == 1 else 'steps'}, {report.trained_s:.0f} s"


def measured_lines(report: RunReport) -> list[str]:
    """Return the measurement of the summary line."""
    before, after = report.before, report.after
    if report.kind == "debug":
        return []
    episodes = sum(each.episodes for each in report.training)
    lines = [
        f"the whole run: {report.last_step} steps, {episodes:,} episodes, {report.total_trained_s:.0f} s of training, "
        f"{report.elapsed_s:.0f} s with measurements and checkpoints"
    ]
    if before is not None and after is not None:
        times = len(report.validation)
        kept = f"the best of {times} measurements is kept" if times > 2 else "measured once before and once after"
        if report.model_superseded:
            kept = f"the best is kept, of step {after.step} before a resume ran that step again"
        elif report.model_step == before.step:
            kept = "none was better than the starting model, which is kept"
        lines.append(
            f"measured on {after.tasks} held-out tasks, {after.episodes} episodes each time; {kept}; "
            "the seconds are those of the training steps until then"
        )
        if report.baseline is not None:
            lines.append(
                f"a simple rule without a model succeeds on {rate_text(report.baseline)} of the same tasks "
                "(their `baseline`)"
            )
    elif report.training:
        lines.append("no measurement on held-out tasks after training: the rates are those of the training episodes")
    return lines


def _parts(report: RunReport, console: Console) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if report.before is not None and report.after is not None:
        parts.append(_before_and_after(report.before, report.after))
    for comparison in report.comparisons:
        parts.append(_side_by_side(comparison, console.width))
    curve = terminal_curve(report, width=console.width, ascii_only=console.options.ascii_only)
    if curve.plain:
        parts += [Text(), curve]
    parts.append(_balance(report.balance))
    return parts


def _path_lines(report: RunReport) -> list[Text]:
    lines = [Text(f"run       {_shown(report.path)}")]
    if report.model is not None:
        lines.append(Text(f"model     {_shown(report.model)} (step {report.model_step})"))
    if report.prompts is not None:
        lines.append(Text(f"prompts   {_shown(report.prompts)}"))
    lines += [Text(f"earlier   {_shown(path)}: steps that a resume ran again") for path in report.superseded]
    return lines


def _shown(path: Path) -> str:
    """Relative to the working directory where it lies below, so that what is printed can be shared."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # an agent went to a folder that is gone
        return str(path)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _before_and_after(before: StepSummary, after: StepSummary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("held-out tasks")
    table.add_column(Text(f"before (step {before.step})"), justify="right")
    table.add_column(Text(f"after (step {after.step})"), justify="right", style="bold")
    table.add_row("success, 95 % interval", _success(before), _success(after))
    table.add_row("reward", rate_text(before.reward), rate_text(after.reward))
    table.add_row("tokens written an episode", _number(before.answer_tokens), _number(after.answer_tokens))
    table.add_row("turns an episode", rate_text(before.turns), rate_text(after.turns))
    if before.errors or after.errors:
        table.add_row("attempts in error", str(before.errors), str(after.errors))
    return table


def _side_by_side(comparison: Comparison, width: int) -> RenderableType:
    head = Text.assemble((f"{visible(comparison.task_id)}  ", "bold"), visible(_shortened(comparison.question)))
    halves = [("before", comparison.before), ("after", comparison.after)]
    panels = [_conversation(name, half) for name, half in halves]
    if width < _SIDE_BY_SIDE_FROM:
        return Group(Text(), head, *panels)
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(*panels)
    return Group(Text(), head, grid)


def _conversation(name: str, transcript: Transcript) -> Panel:
    """Everything after the question; blue is what the model wrote, yellow what it read, as in the viewer."""
    body = Text()
    for turn in transcript.after_question:
        body.append(f"{turn.role} ", style="dim")
        body.append(visible(_shortened(turn.text.strip() or "(nothing)")), style="blue" if turn.written else "yellow")
        body.append("\n")
    body.rstrip()
    branch = f", 1 of {transcript.timelines} timelines" if transcript.timelines > 1 else ""
    return Panel(
        body,
        title=Text(f"{name}: {transcript.verdict}{branch}"),
        title_align="left",
        border_style="green" if transcript.success else "red",
    )


def _balance(balance: TokenBalance) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("tokens sampled in training")
    table.add_column("count", justify="right")
    table.add_column("part", justify="right")
    for account, count, part in accounts(balance):
        table.add_row(Text(account), f"{count:,}", part)
    table.add_section()
    table.add_row("sampled", f"{balance.sampled:,}", "", style="bold")
    difference = balance.difference
    table.add_row("unaccounted for", f"{difference:,}", "", style="bold red" if difference else "green")
    return table


def _success(summary: StepSummary) -> str:
    low, high = summary.interval
    return f"{rate_text(summary.success_rate)} ({rate_text(low)}-{rate_text(high)})"


def _shortened(text: str) -> str:
    hidden = len(text) - _MAX_TURN_CHARACTERS
    return text if hidden <= 0 else f"{text[:_MAX_TURN_CHARACTERS]} … ({hidden:,} more characters)"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
