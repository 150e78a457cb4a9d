"""`astune optimize-prompt CONF`: a search for prompts as a run, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import yaml
from rich.table import Table

from astune.app.console import Console
from astune.app.execution import prepared
from astune.app.experiment import Experiment
from astune.backbone.prompt_search import MINIBATCH, REFERENCE
from astune.cli._errors import EXIT_INTERRUPTED
from astune.cli._train import Request, train_or_plan
from astune.config.strict import changed
from astune.launcher.companion import CompanionFlags
from astune.runs import RunDirectory
from astune.runs.interval import interval_text, rate_text
from astune.runs.report import BEST_PROMPTS, read_report


def search_or_plan(
    conf: Path, overrides: Sequence[str], companions: CompanionFlags, *, plan: Literal["short", "full"] | None
) -> int:
    """Search, or say what would be done; returns the exit status."""
    request = Request(conf, list(overrides), plan=plan, companions=companions, over={"backbone": REFERENCE})
    if plan is not None:
        return train_or_plan(request)
    console = Console()
    try:
        with prepared(
            f"{request.title}, prompts", lambda: _with_steps(request.experiment()), companions, console
        ) as job:
            _report(job.train(console), console)
    except KeyboardInterrupt:  # the run has reported it
        return EXIT_INTERRUPTED
    return 0


def _with_steps(experiment: Experiment) -> Experiment:
    """The same with as many steps as its episodes are enough for, so that the display knows how far it is."""
    config = experiment.config
    steps = max(1, config.prompt_search.max_episodes // MINIBATCH)
    return replace(experiment, config=changed(config, trainer={"total_steps": steps}))


def _report(run: RunDirectory, console: Console) -> None:
    measured = read_report(run, examples=0).validation
    table = Table("prompts", "held-out success", "95 % interval", "mean reward")
    for name, summary in zip(("start", "best"), (measured[0], measured[-1]) if measured else (), strict=False):
        interval = interval_text(summary.interval)
        table.add_row(name, rate_text(summary.success_rate), interval, rate_text(summary.reward))
    console.print(table)
    best = yaml.safe_load((run.path / BEST_PROMPTS).read_text(encoding="utf-8"))["astune"]["rollout"]["params"]
    for name, text in best.items():
        console.say(f"\n{name}:\n{text}")
    console.say(f"\nthese prompts: {run.path / BEST_PROMPTS}")
