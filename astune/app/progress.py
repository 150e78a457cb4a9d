"""Progress of a run as plain numbers, updated by callbacks and read by the display."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from astune.runs import balance_of
from astune.schema import Episode, Split, Task, TokenBalance

PHASES = ("rollout", "judge", "train", "sync", "validation", "save")
_QUEUED = "start"


@dataclass(slots=True)
class Measurement:
    """A line of metrics with its time."""

    step: int
    split: Split
    metrics: dict[str, float]

    def get(self, name: str) -> float:
        return self.metrics.get(name, math.nan)


@dataclass
class Progress:
    """Progress of a run, as a `RunObserver`.

    `episodes_of` is the expected number of episodes of the phases `rollout` and `validation`.
    """

    total_steps: int
    first_step: int = 0
    episodes_of: dict[str, int] = field(default_factory=dict)
    tell: Callable[[Measurement], object] = lambda _: None
    """Called with each new line of metrics."""
    say: Callable[[str], object] = lambda _: None
    """Called with each line that the user is to read."""
    clock: Callable[[], float] = time.monotonic

    step: int = 0
    phase: str = ""
    doing: dict[str, str] = field(default_factory=dict)
    """The wait of each running episode, by episode id."""
    finished: int = 0
    failed: int = 0
    first_failure: str | None = None
    """The first failure of the phase's attempts, which mostly explains the others."""
    train: list[Measurement] = field(default_factory=list)
    validation: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = self.first_step
        self._started = self.clock()
        self._phase_started = self._started
        self._training_started: float | None = None
        self._phase_s: dict[str, float] = {}

    def on_started(self, episode_id: str, task: Task) -> None:
        self.doing[episode_id] = _QUEUED

    def on_waits_for(self, episode_id: str, what: str) -> None:
        self.doing[episode_id] = what

    def on_finished(self, episode: Episode) -> None:
        self.doing.pop(episode.episode_id, None)
        self.finished += 1

    def on_attempt_failed(self, episode: Episode) -> None:
        self.doing.pop(episode.episode_id, None)
        self.failed += 1
        self.first_failure = self.first_failure or episode.error

    def on_phase(self, phase: str) -> None:
        now = self.clock()
        if self.phase:
            self._phase_s = self.phase_seconds()
        if phase == "rollout":
            self._phase_s = {}
            if self._training_started is None:
                self._training_started = now
        if phase in ("rollout", "validation"):
            self.finished = self.failed = 0
            self.first_failure = None
            self.doing.clear()
        self.phase, self._phase_started = phase, now

    def on_record(self, step: int, split: Split, metrics: dict[str, float]) -> None:
        measurement = Measurement(step, split, dict(metrics))
        self.remember(measurement)
        self.tell(measurement)

    def on_note(self, line: str) -> None:
        self.say(line)

    def remember(self, measurement: Measurement) -> None:
        """Take in a line of metrics that is not news: one of an earlier session of this run."""
        self.step = max(self.step, measurement.step)
        (self.train if measurement.split == "train" else self.validation).append(measurement)

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self._started

    @property
    def eta_s(self) -> float | None:
        """Seconds until `total_steps`, from the pace of this session's steps; None before the first one."""
        done = self.step - self.first_step
        if self._training_started is None or done <= 0:
            return None
        return max(0.0, (self.clock() - self._training_started) / done * (self.total_steps - self.step))

    @property
    def waiting(self) -> int:
        """Episodes of the phase that have not begun."""
        return max(0, self.episodes_of.get(self.phase, 0) - self.finished - len(self.doing))

    def phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase since this step's rollout began, the running one included."""
        seconds = dict(self._phase_s)
        if self.phase:
            seconds[self.phase] = seconds.get(self.phase, 0.0) + self.clock() - self._phase_started
        known = {name: seconds.pop(name) for name in PHASES if name in seconds}
        return known | seconds

    def last_phase_seconds(self) -> dict[str, float]:
        """Seconds of each phase of the newest step, and of the newest measurement."""
        metrics = {
            name: value for each in self.validation[-1:] + self.train[-1:] for name, value in each.metrics.items()
        }
        return {name: metrics[key] for name in PHASES if (key := f"time/{name}_s") in metrics}

    def waits(self) -> Counter[str]:
        """Count the running episodes by what they wait for; a copy, since the display reads it from its own thread."""
        return Counter(list(self.doing.values()))

    def tokens_per_s(self) -> tuple[float, float] | None:
        """Tokens read and written a second in the newest step or measurement; None before the first one."""
        newest = max(self.train[-1:] + self.validation[-1:], key=lambda each: each.step, default=None)
        if newest is None or math.isnan(newest.get("engine/tokens_per_s_out")):
            return None
        return newest.get("engine/tokens_per_s_in"), newest.get("engine/tokens_per_s_out")

    def balance(self) -> TokenBalance | None:
        """Return the token accounting of the last step; None before it."""
        return balance_of(self.train[-1].metrics) if self.train else None
