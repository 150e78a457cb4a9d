"""Comparison of the engine's log-probabilities with the trainer's on real rollouts: `astune check numerics`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from astune.app.beside import made_ready
from astune.app.console import Console
from astune.app.execution import silence_progress_bars
from astune.app.experiment import Experiment
from astune.launcher.companion import CompanionFlags

if TYPE_CHECKING:
    from astune.backbone.base import RunObserver
    from astune.backbone.parts import UserParts
    from astune.numerics.check import NumericsReport


def check_numerics(
    experiment: Experiment,
    flags: CompanionFlags,
    console: Console,
    observed: AbstractContextManager[RunObserver],
    *,
    steps: int,
    tasks: int,
) -> NumericsReport:
    """Roll out `steps` steps of `tasks` tasks each and measure the difference of engine and trainer; leaves no files.
    Raises AstuneError if something that the experiment needs is missing, or it could not be trained.

    Args:
        observed: context entered when everything is ready; its value is the observer.
    """
    from astune.backbone import local
    from astune.backbone.parts import load_parts

    silence_progress_bars()
    config = experiment.config
    reports: list[NumericsReport] = []

    def parts_checked() -> UserParts:
        with console.status("importing the workflow, reading the tasks") as status:
            parts = load_parts(config, experiment.base_dir, status.update)
        local.check_trainable(config, parts)
        return parts

    with made_ready(config, flags, console, parts_checked, takes_weights=True) as ready:

        async def work() -> None:
            with observed as observer:
                reports.append(await local.check_numerics(config, ready.parts, observer, steps=steps, tasks=tasks))

        ready.run(work())
    [report] = reports
    return report
