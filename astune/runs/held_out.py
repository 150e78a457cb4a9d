"""Success on the held-out tasks over a run, as shown in lists of runs and in sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from astune.runs.metrics import MetricsLine

SUCCESS = "reward/success_of_all"
"""The part of all held-out episodes that succeeded; those that did not finish count as failed."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Validation score of the first measurement, the best one (the first of equals) and the last."""

    first: float
    best: float
    best_step: int
    last: float
    last_step: int

    @classmethod
    def of(cls, lines: Iterable[MetricsLine], known: Self | None = None) -> Self | None:
        """Summarise the measurements among these lines, after `known`; None if there is none."""
        for line in lines:
            score = line.metrics.get(SUCCESS, line.metrics.get("reward/success_rate", math.nan))
            if line.kind != "validation" or not math.isfinite(score):
                continue
            if known is None:
                known = cls(score, score, line.step, score, line.step)
                continue
            best, best_step = (score, line.step) if score > known.best else (known.best, known.best_step)
            known = cls(known.first, best, best_step, score, line.step)
        return known
