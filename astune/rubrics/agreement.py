"""Agreement of grades with labels: pairs in the right order, and Kendall's tau, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple, TypeVar

from astune.runs.interval import OfTasks, interval_of

T = TypeVar("T")

Answer = tuple[float, float]
"""The label and the grade of an answer."""
Graded = Sequence[Answer]
"""Answers that are compared with each other."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over `pairs` of answers with different labels. A tie of grades is half right. The intervals are of 95 %, for
    other groups of answers like these, or other answers where all pairs are of one group."""

    pairs: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    tau: float
    tau_interval: tuple[float, float]


def agreement(groups: Sequence[Graded]) -> Agreement:
    """Compare grades with labels within each group of answers; pairs are not taken across groups.

    Source: tau-b, Kendall 1945, Biometrika 33, 239-251. Its interval is that of the accuracy, with as many ties.
    """
    counts = [_count(combinations(group, 2)) for group in groups]
    total = _Counts(*(sum(each[i] for each in counts) for i in range(4)))
    telling = [group for group, each in zip(groups, counts, strict=True) if each.labelled]
    accuracy = total.good / total.labelled if telling else math.nan
    low, high = interval_of(accuracy, _effective(telling)) if telling else (math.nan, math.nan)
    ties = math.sqrt(total.labelled / total.graded) if total.graded else 0.0
    return Agreement(
        pairs=total.labelled,
        accuracy=accuracy,
        accuracy_interval=(low, high),
        tau=(2 * accuracy - 1) * ties if telling else 0.0,
        tau_interval=(max(-1.0, (2 * low - 1) * ties), min(1.0, (2 * high - 1) * ties)),
    )


def comparable(groups: Sequence[Sequence[tuple[float, T]]]) -> list[Sequence[tuple[float, T]]]:
    """The groups of labels and grades; one of all where none has two labels, as with one answer to each query."""
    if any(len({label for label, _ in group}) > 1 for group in groups):
        return list(groups)
    return [[one for group in groups for one in group]]


class _Counts(NamedTuple):
    """Pairs in the right order, in the wrong one, tied by grades, and tied by labels alone."""

    right: int
    wrong: int
    tied: int
    equal: int

    @property
    def labelled(self) -> int:
        """Pairs with different labels."""
        return self.right + self.wrong + self.tied

    @property
    def graded(self) -> int:
        """Pairs with different grades."""
        return self.right + self.wrong + self.equal

    @property
    def good(self) -> float:
        return self.right + self.tied / 2


def _count(pairs: Iterable[tuple[Answer, Answer]]) -> _Counts:
    right = wrong = tied = equal = 0
    for (label, grade), (other_label, other_grade) in pairs:
        if label == other_label:
            equal += grade != other_grade
        elif grade == other_grade:
            tied += 1
        elif (label > other_label) == (grade > other_grade):
            right += 1
        else:
            wrong += 1
    return _Counts(right, wrong, tied, equal)


def _effective(groups: Sequence[Graded]) -> float:
    """The number of independent pairs that tell as much of the accuracy as those within these groups.

    Pairs of one group share answers. The variance of a mean over pairs is then about four times that of its answers'
    own means, and no larger than that of pairs which share none.

    Source: Hoeffding 1948, Annals of Mathematical Statistics 19, 293-325.
    """
    if len(groups) > 1:
        return _as_tasks(_count(combinations(group, 2)) for group in groups).effective
    [group] = groups
    return max(len(group) / 2, _as_tasks(_count(product([answer], group)) for answer in group).effective / 4)


def _as_tasks(counts: Iterable[_Counts]) -> OfTasks:
    return OfTasks.of((each.good, each.labelled) for each in counts if each.labelled)
