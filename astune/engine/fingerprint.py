"""Fingerprint of weights on a fixed text, to verify that an engine in another process computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The trainer's log-probabilities of a fixed text.

    `logprobs[i]` is the log-probability of `token_ids[i + 1]` after the tokens before it, at temperature 1. An engine
    with the same weights differs by rounding, which is at most `limit` in the mean.
    """

    token_ids: list[int]
    logprobs: list[float]
    limit: float

    def distance(self, logprobs: Sequence[float]) -> float:
        """The mean absolute difference."""
        return fmean(abs(own - other) for own, other in zip(self.logprobs, logprobs, strict=True))

    def changed_since(self, earlier: Fingerprint) -> float:
        """The part of the tokens whose log-probability is another one than `earlier`, by however little."""
        return fmean(own != other for own, other in zip(self.logprobs, earlier.logprobs, strict=True))
