"""REINFORCE++: advantages normalised over the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from astune.algorithm.advantages import group_advantages
from astune.algorithm.clipped import ClippedAlgorithm

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePlusPlus(ClippedAlgorithm):
    """REINFORCE++: the mean of a step's rewards is the baseline, their standard deviation the unit.

        two tasks with rewards 1 0 and 1 1   ->   mean 0.75, deviation 0.43: 0.58 -1.73 and 0.58 0.58

    The deviation of four episodes is mostly noise, that of a batch is not; and a task that is always solved, from which
    GRPO learns nothing, holds on to its answers here.

    Args:
        group_baseline: subtract the group's mean first, then divide by the batch's deviation ("REINFORCE++-baseline",
            for tasks whose rewards differ in scale):   0.5 -0.5 and 0 0, deviation 0.35  ->  1.41 -1.41 and 0 0

    Source: Hu et al. 2025, arXiv 2501.03262. Episodes are counted, where implementations of it often count tokens, so
    that long answers have no more weight in the baseline (law 5). The KL term is `trainer.loss.kl_coef`.
    """

    baseline: Literal["group", "batch"] = "batch"

    def __init__(self, *, group_baseline: bool = False, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        super().__init__(clip_low=clip_low, clip_high=clip_high)
        self.group_baseline = group_baseline

    def advantages(self, reward_BK: Tensor) -> Tensor:
        centred_BK = group_advantages(reward_BK, normalise=False) if self.group_baseline else reward_BK
        return group_advantages(centred_BK.reshape(1, -1), normalise=True).reshape(reward_BK.shape)
