"""Agreement of grades with labels: pairs in the right order, and Kendall's tau, with intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import numpy as np

_RESAMPLES = 1000
T = TypeVar("T")

Graded = Sequence[tuple[float, float]]
"""Labels and grades of the answers that are compared with each other."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over `pairs` of answers with different labels. A tie of grades is half right. The intervals are of 95 %, by
    resampling what was labelled together, or the answers themselves where all pairs are of one group."""

    pairs: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    tau: float
    tau_interval: tuple[float, float]


def agreement(groups: Sequence[Graded], *, seed: int = 0) -> Agreement:
    """Compare grades with labels within each group of answers; pairs are not taken across groups."""
    counts = [_count(group) for group in groups]
    telling = [number for number, each in enumerate(counts) if _labelled(each)]
    if len(telling) == 1:
        resampled = _resampled_answers(groups[telling[0]], [*counts[: telling[0]], *counts[telling[0] + 1 :]], seed)
    else:
        resampled = _resampled_groups(counts, seed)
    accuracy, tau = _rates(counts)
    return Agreement(
        pairs=int(sum(map(_labelled, counts))),
        accuracy=accuracy,
        accuracy_interval=_interval([each[0] for each in resampled]),
        tau=tau,
        tau_interval=_interval([each[1] for each in resampled]),
    )


def comparable(groups: Sequence[Sequence[tuple[float, T]]]) -> list[Sequence[tuple[float, T]]]:
    """The groups of labels and grades; one of all where none has two labels, as with one answer to each query."""
    if any(len({label for label, _ in group}) > 1 for group in groups):
        return list(groups)
    return [[one for group in groups for one in group]]


_Counts = tuple[float, ...]
"""Pairs in the right order, in the wrong one, tied by grades, and tied by labels alone."""


def _count(group: Graded) -> _Counts:
    right = wrong = tied = equal = 0
    for (label, grade), (other_label, other_grade) in combinations(group, 2):
        if label == other_label:
            equal += grade != other_grade
        elif grade == other_grade:
            tied += 1
        elif (label > other_label) == (grade > other_grade):
            right += 1
        else:
            wrong += 1
    return right, wrong, tied, equal


def _labelled(counts: _Counts) -> float:
    """Pairs with different labels."""
    return sum(counts[:3])


def _resampled_groups(counts: Sequence[_Counts], seed: int) -> list[tuple[float, float]]:
    draw = random.Random(seed)
    return [_rates(draw.choices(counts, k=len(counts))) for _ in range(_RESAMPLES)]


def _resampled_answers(group: Graded, others: Sequence[_Counts], seed: int) -> list[tuple[float, float]]:
    """Rates of draws of as many answers of the group, beside those of the others; twice the same answer is no pair."""
    labels_A, grades_A = np.array(group, dtype=np.float64).reshape(-1, 2).T
    by_label_AA = np.sign(labels_A[:, None] - labels_A)
    by_grade_AA = np.sign(grades_A[:, None] - grades_A)
    agree_AA = by_label_AA * by_grade_AA
    kinds = [
        agree_AA > 0,
        agree_AA < 0,
        (by_label_AA != 0) & (by_grade_AA == 0),
        (by_label_AA == 0) & (by_grade_AA != 0),
    ]
    chance = np.full(len(group), 1 / len(group))
    times_RA = np.random.default_rng(seed).multinomial(len(group), chance, size=_RESAMPLES).astype(np.float64)
    pairs = [((times_RA @ kind_AA) * times_RA).sum(axis=1) / 2 for kind_AA in kinds]
    return [_rates([*others, drawn]) for drawn in zip(*(each.tolist() for each in pairs), strict=True)]


def _rates(counts: Sequence[_Counts]) -> tuple[float, float]:
    """Accuracy, and tau-b (Kendall 1945, Biometrika 33, 239-251), over the pairs of all groups."""
    right, wrong, tied, equal = (sum(each[i] for each in counts) for i in range(4))
    labelled, graded = right + wrong + tied, right + wrong + equal
    accuracy = (right + tied / 2) / labelled if labelled else math.nan
    tau = (right - wrong) / math.sqrt(labelled * graded) if labelled and graded else 0.0
    return accuracy, tau


def _interval(values: list[float]) -> tuple[float, float]:
    ordered = sorted(value for value in values if not math.isnan(value)) or [math.nan]
    return ordered[int(0.025 * (len(ordered) - 1))], ordered[int(0.975 * (len(ordered) - 1))]
