"""Warnings about a run, from the metrics of its training steps: what to look at before its numbers are trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from astune.runs import MetricsLine
from astune.trainer.reward_watch import PREFIX, has_jumped

WarningKind = Literal["mismatch", "jump", "dropped", "failed"]
HEALTHY_CORRELATION = 0.99
"""Minimum correlation of engine and trainer, in bfloat16; a cluster's run ends below 0.97."""
_TOKENS_TO_JUDGE = 100
_MUCH_DROPPED = 0.5
_MANY_FAILED = 0.05


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning. `step` is where it shows first or most, None where it is of the whole run.

    `value` is what was measured: a correlation, NaN where it was no number, a sign of reward hacking, or a part of 1.
    `before` is the sign's mean in the first steps.
    """

    kind: WarningKind
    metric: str
    step: int | None
    value: float
    before: float | None = None

    @property
    def text(self) -> str:
        """The warning in words, with what to look at."""
        match self.kind:
            case "mismatch" if math.isnan(self.value):
                return (
                    f"{self.metric} is not a number in step {self.step}: engine or trainer gave tokens a probability "
                    "that is none. `astune check numerics` looks for the cause"
                )
            case "mismatch":
                return (
                    f"engine and trainer disagree: their probabilities correlate by {self.value:.3f} in step "
                    f"{self.step}, and {HEALTHY_CORRELATION} is healthy. `astune check numerics` looks for the cause"
                )
            case "jump":
                return (
                    f"{self.metric} rose to {self.value:.2f} in step {self.step}, from {self.before or 0.0:.2f} in the "
                    "first steps: look whether the reward is earned without doing the task"
                )
            case "dropped":
                return (
                    f"{self.value:.0%} of the groups were not trained, mostly since all their rewards were equal or an "
                    "episode was missing: the token account says which"
                )
            case "failed":
                return f"{self.value:.0%} of the attempts at an episode failed: their errors are among the episodes"


def warnings_of(lines: Iterable[MetricsLine]) -> list[RunWarning]:
    """Return warnings from the metrics of the training steps, the most serious first."""
    training = [line for line in lines if line.kind == "train"]
    return [*_mismatch(training), *_jumps(training), *_shares(training)]


def _mismatch(training: Sequence[MetricsLine]) -> list[RunWarning]:
    """The first correlation that is no number, and the worst of the others where it is too low."""
    name = "train/engine_correlation"
    measured = [(line.metrics[name], line) for line in training if name in line.metrics]
    unknown = [line.step for value, line in measured if not math.isfinite(value)]
    found = [RunWarning("mismatch", name, step, math.nan) for step in unknown[:1]]
    judged = [
        (value, line.step)
        for value, line in measured
        if math.isfinite(value) and line.metrics.get("train/versions_behind_0/tokens", 0) >= _TOKENS_TO_JUDGE
    ]
    value, step = min(judged, default=(math.inf, 0))
    return [*found, RunWarning("mismatch", name, step, value)] if value < HEALTHY_CORRELATION else found


def _jumps(training: Sequence[MetricsLine]) -> list[RunWarning]:
    """The first jump of each sign, as the run itself warned of it."""
    found: dict[str, RunWarning] = {}
    history: dict[str, list[float]] = {}
    for line in training:
        for name, value in line.metrics.items():
            if not name.startswith(PREFIX):
                continue
            before = history.setdefault(name, [])
            if name not in found and has_jumped(before, value):
                found[name] = RunWarning("jump", name, line.step, value, sum(before[:5]) / 5)
            before.append(value)
    return list(found.values())


def _shares(training: Sequence[MetricsLine]) -> list[RunWarning]:
    total = _totals(training, ("groups/dropped", "groups/used", "episodes/failed_attempts", "episodes/finished"))
    found: list[RunWarning] = []
    if (dropped := _share(total["groups/dropped"], total["groups/used"])) > _MUCH_DROPPED:
        found.append(RunWarning("dropped", "groups/dropped", None, dropped))
    if (failed := _share(total["episodes/failed_attempts"], total["episodes/finished"])) > _MANY_FAILED:
        found.append(RunWarning("failed", "episodes/failed_attempts", None, failed))
    return found


def _totals(training: Sequence[MetricsLine], names: Sequence[str]) -> Mapping[str, float]:
    return {
        name: sum(value for line in training if math.isfinite(value := line.metrics.get(name, 0.0))) for name in names
    }


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else 0.0
