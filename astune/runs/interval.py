"""Confidence interval of a rate, of episodes that may be of the same tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Self

_DIGITS = 9
_Z = 1.959964
"""97.5 % quantile of the normal distribution."""


def wilson_interval(successes: float, n: float) -> tuple[float, float]:
    """Return the 95 % interval of a rate, valid also near 0 and 1.

    Source: Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    middle = rate + _Z * _Z / (2 * n)
    spread = _Z * math.sqrt(rate * (1 - rate) / n + _Z * _Z / (4 * n * n))
    scale = 1 + _Z * _Z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def effective_number(rate: float, n: int, *, variance: float, clusters: float) -> float:
    """The number of independent trials that tell as much of a rate as these n, whose rate has been estimated to have
    this variance, from so many clusters. Fewer where clusters are few: the variance itself is then uncertain.

    Source: Korn and Graubard 1998, Survey Methodology 24, 193-201.
    """
    if variance <= 0:
        return n
    uncertain = (_t_quantile(n - 1) / _t_quantile(clusters - 1)) ** 2
    return min(n, n * rate * (1 - rate) / (n - 1) / variance * uncertain)


def _t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t, 11 % too low at 1 degree of freedom, 1 % at 2 and less above.

    Source: Abramowitz and Stegun 1964, "Handbook of Mathematical Functions", 26.7.5.
    """
    return _Z + 2.3723 / degrees + 2.8225 / degrees**2 + 2.5558 / degrees**3 + 1.5898 / degrees**4


class OfTasks(NamedTuple):
    """Sums over tasks, of which each has n episodes and s successes: of n, s, s * s, s * n and n * n."""

    episodes: int
    successes: float
    ss: float
    sn: float
    nn: int

    @classmethod
    def of(cls, tasks: Iterable[tuple[float, int]]) -> Self:
        """The sums of pairs of successes, of which one may count in part, and episodes."""
        rows = [(n, s, s * s, s * n, n * n) for s, n in tasks]
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls(0, 0, 0, 0, 0)

    @property
    def effective(self) -> float:
        """The number of independent episodes that tell as much of the rate as these.

            20 tasks, 1 episode each                              ->  20
            20 tasks, 8 each, half of them solved always          ->  20    the others say nothing new
            20 tasks, 8 each, each solved 4 times                 ->  160
            4 tasks, 4 each, solved 2, 4, 0 and 2 times           ->  4     too few tasks to see how they differ
            1 task, 8 episodes                                    ->  1
            2 tasks, of 1000 and of 2 episodes                    ->  1     the small one tells nothing of the other

        Counted one by one, episodes of the same tasks would make an interval of 95 % hold in 60 % of such measurements.

        Source: `effective_number` of Kish's variance of a ratio over clusters (1965, "Survey Sampling"), which count as
        (sum of sizes)^2 / sum of squared sizes: what is left where episodes of a task always agree.
        """
        n = self.episodes
        if not n:
            return 0.0
        rate, fewest = self.successes / n, n * n / self.nn
        if rate in (0.0, 1.0) or fewest <= 1:
            return fewest
        spread = self.ss - 2 * rate * self.sn + rate * rate * self.nn
        variance = spread / n**2 * fewest / (fewest - 1)
        return max(fewest, effective_number(rate, n, variance=variance, clusters=fewest))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the rate on tasks like these."""
        return interval_of(self.successes / max(1, self.episodes), self.effective)


def rate_text(rate: float) -> str:
    """A number with two digits, or as many as it takes to tell a rate from none and from all; - if not known.

    0.5 -> 0.50        249 of 250 -> 0.996        0.0004 -> 0.0004
    """
    if math.isnan(rate):
        return "-"
    rate = round(rate, _DIGITS) + 0.0  # which makes -0.0 a 0
    digits = 2
    while rate not in (0.0, 1.0) and float(f"{rate:.{digits}f}") in (0.0, 1.0):
        digits += 1
    return f"{rate:.{digits}f}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return `0.38 to 0.62`."""
    low, high = interval
    return f"{rate_text(low)} to {rate_text(high)}"


def interval_of(rate: float, effective: float) -> tuple[float, float]:
    """The 95 % interval of a rate of so many independent episodes."""
    return wilson_interval(rate * effective, effective)
