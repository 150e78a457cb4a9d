"""Confidence interval of a rate, of episodes that may be of the same tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Self


def wilson_interval(successes: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a rate, valid also near 0 and 1.

    Source: Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    middle = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


class OfTasks(NamedTuple):
    """Sums over tasks, of which each has n episodes and s successes: of 1, n, s, s * s, s * n and n * n."""

    tasks: int
    episodes: int
    successes: int
    ss: int
    sn: int
    nn: int

    @classmethod
    def of(cls, tasks: Iterable[tuple[int, int]]) -> Self:
        """The sums of pairs of successes and episodes."""
        rows = [(1, n, s, s * s, s * n, n * n) for s, n in tasks]
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls(0, 0, 0, 0, 0, 0)

    @property
    def effective(self) -> float:
        """The number of independent episodes that tell as much of the rate as these.

            20 tasks, 1 episode each                              ->  20
            20 tasks, 8 each, half of them solved always          ->  20    the others say nothing new
            20 tasks, 8 each, each solved 4 times                 ->  160
            1 task, 8 episodes                                    ->  1     how tasks differ is not seen

        Counted one by one, episodes of the same tasks would make an interval of 95 % hold in 60 % of such measurements.

        Source: Kish 1965, "Survey Sampling", section 5.4, with the variance of a ratio over clusters.
        """
        if not self.episodes:
            return 0.0
        rate = self.successes / self.episodes
        spread = self.ss - 2 * rate * self.sn + rate * rate * self.nn
        if rate in (0.0, 1.0) or self.tasks == 1:
            return float(self.tasks)
        return min(self.episodes, rate * (1 - rate) * self.episodes**2 / spread) if spread > 0 else self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the rate on tasks like these."""
        return interval_of(self.successes / max(1, self.episodes), self.effective)


def interval_of(rate: float, effective: float) -> tuple[float, float]:
    """The 95 % interval of a rate of so many independent episodes."""
    return wilson_interval(rate * effective, effective)
