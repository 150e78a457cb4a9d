"""The reward curve of a run: in the terminal, and as a picture drawn by matplotlib, which is imported only then."""

from __future__ import annotations

import importlib.util
import io
from typing import Literal

from rich.text import Text

from astune.cli._chart import Series, draw_chart
from astune.runs.report import RunReport


def terminal_curve(report: RunReport, *, width: int, ascii_only: bool) -> Text:
    """Reward in training as a curve, held-out measurements as marks; empty where there is nothing to draw."""
    training = Series("reward in training", [(each.step, each.reward) for each in report.training], "cyan")
    held_out = Series(
        "reward held-out", [(each.step, each.reward) for each in report.validation], "green", joined=False
    )
    return draw_chart([training, held_out], width=min(width, 100), ascii_only=ascii_only)


def reward_picture(report: RunReport, form: Literal["png", "svg"] = "png") -> bytes | None:
    """The curve as a picture; None where there is nothing to draw or matplotlib is not installed."""
    if not (report.training or report.validation) or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if report.training:
        axes.plot(
            [each.step for each in report.training],
            [each.reward for each in report.training],
            color="#4878a8",
            label="reward in training",
        )
    if report.validation:
        intervals = [each.interval for each in report.validation]
        rates = [each.success_rate for each in report.validation]
        below = [max(0.0, rate - low) for rate, (low, _) in zip(rates, intervals, strict=True)]
        above = [max(0.0, high - rate) for rate, (_, high) in zip(rates, intervals, strict=True)]
        axes.errorbar(
            [each.step for each in report.validation],
            rates,
            yerr=[below, above],
            color="#3a9d5d",
            marker="o",
            capsize=3,
            label="held-out success, 95 % interval",
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimiser step")
    axes.set_title(report.experiment.replace("$", r"\$"))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format=form, metadata={"Date": None} if form == "svg" else None)
    return picture.getvalue()
