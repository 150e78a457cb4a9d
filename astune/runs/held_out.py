"""Success on the held-out tasks over a run, as shown in lists of runs and in sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Self

from astune.runs.metrics import MetricsLine

SUCCESS = "reward/success_of_all"
"""The part of all held-out episodes that succeeded; those that did not finish count as failed."""
UNFINISHED = "episodes/unfinished"
"""Number of held-out episodes that did not finish."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Validation score of the first measurement, the best one (the first of equals) and the last."""

    first: float
    best: float
    best_step: int
    last: float
    last_step: int

    @classmethod
    def of(cls, lines: Iterable[MetricsLine]) -> Self | None:
        """Summarise the measurements among these lines; None if there is none."""
        found = ((success_of(line.metrics), line.step) for line in lines if line.kind == "validation")
        scores = [(score, step) for score, step in found if math.isfinite(score)]
        if not scores:
            return None
        return cls(scores[0][0], *max(scores, key=itemgetter(0)), *scores[-1])


def success_of(metrics: Mapping[str, float]) -> float:
    """Success of a measurement, as the best model is chosen by; of runs of earlier versions, that of what finished."""
    return metrics.get(SUCCESS, metrics.get("reward/success_rate", math.nan))
