"""The small complementary set of many rubrics: those that add most information about the labels.

Each pair of answers of which the labels prefer one is a trial; a rubric's evidence is the difference of its two marks.
A logistic model without an intercept and with weights of at least 0 says how likely the preferred one wins. Rubrics are
added one by one, each time the one that lowers the mean surprise most, in bits a pair: that is its information gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 200
_SHRINKAGE = 0.02
"""Penalty on weights: a rubric that is right in every pair gets a finite one, and a duplicate adds nothing."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A rubric's number, its weight, and what it added in bits a pair."""

    number: int
    weight: float
    gain_bits: float


def select(evidence: Floats, *, most: int, least_gain_bits: float = 0.01) -> list[Selected]:
    """Choose rubrics greedily.

    Args:
        evidence: (pairs, rubrics), the mark of the preferred answer less that of the other one.
        most: rubrics at most.
        least_gain_bits: what the next rubric must add, in bits a pair.
    """
    chosen: list[int] = []
    gains: list[float] = []
    surprise = 1.0
    while len(chosen) < min(most, evidence.shape[1]):
        rest = [number for number in range(evidence.shape[1]) if number not in chosen]
        tried = [(_surprise(evidence[:, [*chosen, number]]), number) for number in rest]
        least, number = min(tried)
        if surprise - least < least_gain_bits:
            break
        chosen.append(number)
        gains.append(surprise - least)
        surprise = least
    weights = _weights(evidence[:, chosen]) if chosen else []
    return [Selected(n, float(w), g) for n, w, g in zip(chosen, weights, gains, strict=True) if w > 0]


def _surprise(evidence: Floats) -> float:
    """Mean bits by which the preferred answers surprise the best model on this evidence."""
    return float(np.mean(np.logaddexp(0.0, -evidence @ _weights(evidence))) / np.log(2))


def _weights(evidence: Floats) -> Floats:
    """Weights of at least 0 of the least surprise, by projected gradient descent."""
    weights = np.zeros(evidence.shape[1])
    pairs, rubrics = evidence.shape
    for _ in range(_ROUNDS):
        doubt = 1.0 / (1.0 + np.exp(evidence @ weights))
        slope = _SHRINKAGE - evidence.T @ doubt / max(1, pairs)
        weights = np.maximum(0.0, weights - 4 / max(1, rubrics) * slope)
    return weights
