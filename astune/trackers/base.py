"""The interface of a tracker, which shows a run's metrics somewhere else.

A tracker of your own is one class in one file, named in the configuration as `trackers: [path/file.py->Class]`:

    class Lines(Tracker):
        def log(self, step, split, metrics):
            print(step, split, metrics["reward/mean"])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astune.config.schema import AstuneConfig
from astune.schema import Split

EndStatus = Literal["finished", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that is shown.

    `run_id` is the same when the run is resumed: 16 hexadecimal digits. Metrics of steps after `last_step` that a
    tracker already has are superseded, since a resumed run does these steps once more; it is -1 for a new run.
    """

    run_id: str
    path: Path
    project: str
    experiment: str
    last_step: int = -1

    @property
    def name(self) -> str:
        """The experiment with the time at which the run began, as in its folder."""
        return f"{self.experiment}/{self.path.name}"


class Tracker(ABC):
    """Receiver of a run's metrics. All calls come from the tracker's own thread, in the order of the run.

    An exception is shown once as a warning, and the run continues.
    """

    def start(self, run: TrackedRun, config: AstuneConfig) -> str | None:
        """Begin to show the run, or continue with it where it is resumed.

        Returns:
            where it is shown, such as a web address, which is printed; None for nothing to print.
        """
        return None

    @abstractmethod
    def log(self, step: int, split: Split, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a step; `split` is `train` or `validation`. Values may be NaN or infinite."""

    def finish(self, status: EndStatus) -> None:  # noqa: B027 - there may be nothing to close
        """Send what is left; called once, unless `start` failed."""


def tagged(split: Split, metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics under the names that every shipped tracker shows: `train/reward/mean`, `validation/reward/mean`."""
    return {f"{split}/{name}": value for name, value in metrics.items()}
