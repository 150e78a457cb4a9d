"""Agreement of grades with labels: pairs in the right order, and Kendall's tau, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple, TypeVar

from astune.runs.interval import OfTasks, effective_number, interval_of

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
    if not telling:
        return Agreement(0, math.nan, (math.nan, math.nan), 0.0, (math.nan, math.nan))
    accuracy = total.good / total.labelled
    low, high = interval_of(accuracy, _effective(telling))
    if not total.graded:
        return Agreement(total.labelled, accuracy, (low, high), 0.0, (-1.0, 1.0))
    ties = math.sqrt(total.labelled / total.graded)
    tau, tau_low, tau_high = ((2 * each - 1) * ties for each in (accuracy, low, high))
    return Agreement(total.labelled, accuracy, (low, high), tau, (max(-1.0, tau_low), min(1.0, tau_high)))


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
    """The number of independent pairs that tell as much of the accuracy as those within these groups."""
    if len(groups) == 1:
        return _effective_within(groups[0])
    counts = [_count(combinations(group, 2)) for group in groups]
    return OfTasks.of((each.good, each.labelled) for each in counts).effective


def _effective_within(group: Graded) -> float:
    """The same for the pairs of one group, which share answers: the variance is that over what is left without each
    answer. At least the pairs that share none.

    Source: Arvesen 1969, "Jackknifing U-statistics", Annals of Mathematical Statistics 40, 2076-2100.
    """
    counts = [_count(product([answer], group)) for answer in group]
    counts = [each for each in counts if each.labelled]
    pairs = sum(each.labelled for each in counts) // 2
    rate = sum(each.good for each in counts) / 2 / pairs
    commonest = max(Counter(label for label, _ in group).values())
    fewest = min(len(group) / 2, len(group) - commonest)
    if rate in (0.0, 1.0) or any(each.labelled == pairs for each in counts):
        return fewest
    without = [(each.good - rate * each.labelled) / (pairs - each.labelled) for each in counts]
    variance = (len(counts) - 1) / len(counts) * math.fsum(each * each for each in without)
    clusters = (2 * pairs) ** 2 / sum(each.labelled**2 for each in counts)
    return max(fewest, effective_number(rate, pairs, variance=variance, clusters=max(2.0, clusters)))
