"""Old and new model compared task by task, and whether the new one is promoted.

The test on the frozen set is exact: were the two equally good, each task's difference would be as likely to fall the
other way. The bounds of the difference are those of Clopper and Pearson, which hold at every size of a set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Any

_SMALLEST_P = 0.0001
_MOST_PARTS = 5040
"""Parts of 1 that differences are counted in: 7!, whole numbers for tasks of 1 to 10 episodes side by side."""
MEASURED = 0.95
"""The part of a set that both models have to be measured on."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A set of tasks. Success rates are means over tasks; `low` and `high` bound new - old, each with `confidence`.

    `low` counts losses and no gains, `high` the reverse: they hold for any two models, and are wide.
    `n_lost` of the `n_compared` tasks could be measured with the old model alone, and count as failed by the new one.
    `p_better` is the probability of a difference as large as this one or larger, if the models were equally good.
    """

    name: str
    n_tasks: int
    n_compared: int
    old: float
    new: float
    low: float
    high: float
    p_better: float
    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    """Tasks whose success rose, and fell."""
    n_lost: int = 0

    @property
    def difference(self) -> float:
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision whether the new model is promoted, with every reason for it and against it."""

    promoted: bool
    reasons: list[str]
    comparisons: list[Comparison] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Decision:
        return cls(row["promoted"], row["reasons"], [Comparison(**each) for each in row["comparisons"]])


def compare(
    name: str,
    old: Mapping[str, Sequence[bool]],
    new: Mapping[str, Sequence[bool]],
    *,
    n_tasks: int,
    confidence: float,
) -> Comparison:
    """Two models on one set of tasks.

        task a  old 0 0  new 1 1     difference  1
        task b  old 1 0  new 1 1                 0.5
        task c  old 1 1  new 1 1                 0        ->   0.5 -> 1, p 0.25

    Args:
        old: whether each episode of a task succeeded, by task; of both models equally many a task. A task that could
            not be measured is missing; episodes that only the old model has count as failed by the new one.
        n_tasks: tasks of the set.
    """
    measured = new
    new = {name: [*new.get(name, ()), *[False] * (len(old[name]) - len(new.get(name, ())))] for name in old}
    names = sorted(name for name in old if old[name] and len(old[name]) == len(new[name]))
    gains = {task: sum(new[task]) - sum(old[task]) for task in names}
    of_task = [gains[task] / len(old[task]) for task in names]
    return Comparison(
        name,
        n_tasks,
        len(names),
        fmean(sum(old[task]) / len(old[task]) for task in names) if names else math.nan,
        fmean(sum(new[task]) / len(new[task]) for task in names) if names else math.nan,
        -_most([max(0.0, -each) for each in of_task], confidence),
        _most([max(0.0, each) for each in of_task], confidence),
        _sign_flip_p([Fraction(gains[task], len(old[task])) for task in names]),
        [task for task, gain in gains.items() if gain > 0],
        [task for task, gain in gains.items() if gain < 0],
        sum(not measured.get(task) for task in names),
    )


def decide(frozen: Comparison, regression: Comparison | None, *, confidence: float, worse_by: float) -> Decision:
    """Promote where the new model is better on the frozen set with `confidence`, and not worse on the regression set.

    Not worse: with the same confidence success has not fallen by `worse_by` or more.
    """
    reasons: list[str] = []
    promoted = True
    for each in filter(None, (frozen, regression)):
        twice = each.n_compared - each.n_lost
        if twice < MEASURED * each.n_tasks or not twice:
            promoted = False
            reasons.append(f"{each.name}: only {twice} of {each.n_tasks} tasks could be measured twice")
        if each.n_lost:
            reasons.append(
                f"{each.name}: {each.n_lost} tasks could not be measured of the new model: counted as failed"
            )
    better = frozen.difference > 0 and frozen.p_better <= 1 - confidence
    promoted &= better
    reasons.append(
        f"{frozen.name}: {frozen.old:.3f} -> {frozen.new:.3f} on {frozen.n_compared} tasks, "
        f"{p_value(frozen.p_better)}: "
        + (f"better with {100 * confidence:g} % confidence" if better else f"not shown to be better ({confidence:g})")
    )
    if regression is None:
        reasons.append("regression: no set is named, and nothing shows that other tasks did not suffer")
    else:
        kept = regression.low > -worse_by
        promoted &= kept
        reasons.append(
            f"{regression.name}: {regression.old:.3f} -> {regression.new:.3f} on {regression.n_compared} tasks, "
            f"at least {regression.low:+.3f} with {100 * confidence:g} % confidence: "
            + (f"not worse by {worse_by:g}" if kept else f"it may be worse by {worse_by:g} or more")
        )
    return Decision(promoted, reasons, [each for each in (frozen, regression) if each is not None])


def p_value(p: float) -> str:
    """Return `p = 0.0312`, or `p < 0.0001`."""
    return f"p = {p:.4f}" if p >= _SMALLEST_P else f"p < {_SMALLEST_P}"


def _sign_flip_p(differences: Sequence[Fraction]) -> float:
    """The part of all ways to give the differences signs whose sum is as large as it is, or larger; exact.

    Differences are fractions with small denominators, so that their sums are few and can be counted.
    """
    if not differences:
        return 1.0
    # the cap is for tasks of many sizes alone, whose differences are rounded, each by at most 1e-4
    parts = min(_MOST_PARTS, math.lcm(*(difference.denominator for difference in differences)))
    steps = [round(difference * parts) for difference in differences]
    unit = math.gcd(*steps) or 1
    steps = [step // unit for step in steps]
    chances = {0: 1.0}
    for step in filter(None, map(abs, steps)):
        following: dict[int, float] = {}
        for total, chance in chances.items():
            for moved in (total - step, total + step):
                following[moved] = following.get(moved, 0.0) + chance / 2
        chances = following
    return min(1.0, math.fsum(chance for total, chance in chances.items() if total >= sum(steps)))


def _most(shares: Sequence[float], confidence: float) -> float:
    """The upper bound, with `confidence`, of a mean of numbers from 0 to 1, of which these were seen.

    Source: Clopper and Pearson 1934, Biometrika 26, 404-413, for numbers that are 0 or 1. Fractions are added up, and
    the sum is rounded up: they spread less than zeros and ones of the same mean.
    """
    n, count = len(shares), math.ceil(math.fsum(shares) - 1e-9)
    if count >= n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, n, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(count: int, n: int, rate: float) -> float:
    """The probability of `count` or fewer among `n`; `rate` is above 0 and below 1."""
    ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(count + 1))
    yes, no = math.log(rate), math.log1p(-rate)
    return math.fsum(math.exp(each + k * yes + (n - k) * no) for k, each in enumerate(ways))
