"""RLOO: REINFORCE with the other episodes of a group as the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.advantages import group_advantages
from astune.algorithm.base import TokenWeights
from astune.algorithm.clipped import ClippedAlgorithm

if TYPE_CHECKING:
    from torch import Tensor


class RLOO(ClippedAlgorithm):
    """REINFORCE leave-one-out: an episode's baseline is the mean reward of the group's other episodes.

        rewards 1 0 0 0   ->   advantages 1 -0.33 -0.33 -0.33      (1 - 0, and 0 - 1/3)
        rewards 1         ->   advantage 0: there is no other one

    An episode's tokens are summed, since the whole answer is one action; a constant divides them, so that gradients are
    of the same size as those of other algorithms. The paper makes one update on each batch, where the ratio is 1 and
    nothing is clipped; with more updates (`trainer.loss.updates_per_step`) the ratio of each token is.

    Source: Ahmadian et al. 2024, arXiv 2402.14740, section 3.1; Kool et al. 2019, "Buy 4 REINFORCE samples".
    """

    token_weights: TokenWeights = "constant"

    def advantages(self, reward_BK: Tensor) -> Tensor:
        n_B1 = reward_BK.isfinite().sum(dim=1, keepdim=True)
        return group_advantages(reward_BK, normalise=False) * n_B1 / (n_B1 - 1).clamp(min=1)
