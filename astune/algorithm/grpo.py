"""GRPO, and Dr. GRPO, which takes two biases out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.advantages import group_advantages
from astune.algorithm.base import TokenWeights
from astune.algorithm.clipped import ClippedAlgorithm

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(ClippedAlgorithm):
    """Group relative policy optimisation: a group's mean is the baseline, its standard deviation the unit.

        rewards 1 0 0 0   ->   advantages 1.73 -0.58 -0.58 -0.58

    Each episode has the same weight, whatever its length. `clip_high` is above `clip_low`, as DAPO has it, so that rare
    tokens have room to grow.

    Args:
        normalise_advantages: divide by the standard deviation.

    Source: Shao et al. 2024, arXiv 2402.03300, eq. 3.
    """

    def __init__(self, *, normalise_advantages: bool = True, clip_low: float = 0.2, clip_high: float = 0.28) -> None:
        super().__init__(clip_low=clip_low, clip_high=clip_high)
        self.normalise_advantages = normalise_advantages

    def advantages(self, reward_BK: Tensor) -> Tensor:
        return group_advantages(reward_BK, normalise=self.normalise_advantages)


class DrGRPO(ClippedAlgorithm):
    """GRPO done right: no division by the standard deviation, nor by the answer's length.

        rewards 1 0 0 0   ->   advantages 0.75 -0.25 -0.25 -0.25

    An episode's tokens are summed and divided by a constant, `rollout.max_response_length_in_one_turn`. GRPO's division
    by length makes long wrong answers cheap; its division by the deviation favours tasks that are too easy or too hard.

    Source: Liu et al. 2025, arXiv 2503.20783, section 3.2 and its listing 1.
    """

    token_weights: TokenWeights = "constant"

    def advantages(self, reward_BK: Tensor) -> Tensor:
        return group_advantages(reward_BK, normalise=False)
