"""CISPO: the weight of a token is clipped, and never its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.advantages import group_advantages
from astune.algorithm.base import Algorithm, TokenLoss, Tokens, TokenWeights
from astune.algorithm.clipped import require_above

if TYPE_CHECKING:
    from torch import Tensor


class CISPO(Algorithm):
    """Clipped importance sampling: - clip(ratio, 1 - clip_low, 1 + clip_high) * A * log policy, the clip a constant.

        ratio 7, A 1     ->   slope -5, where PPO's clip has none
        ratio 0.1, A 1   ->   slope -0.1

    Rare tokens at which an answer turns ("However", "Recheck") have large ratios after the first update; PPO's clip
    takes their gradient away. Every token of a batch has the same weight.

    Args:
        clip_low: 1 sets no lower limit, as the paper does.
        clip_high: the paper does not name its value; Khatri et al. found limits of 1 + clip_high from 4 to 8 alike.

    Source: MiniMax 2025, arXiv 2506.13585, eq. 4 and 5; Khatri et al. 2025, arXiv 2510.13786, for the limit.
    """

    token_weights: TokenWeights = "token"

    def __init__(self, *, normalise_advantages: bool = True, clip_low: float = 1.0, clip_high: float = 4.0) -> None:
        self.normalise_advantages = normalise_advantages
        self.clip_low = require_above(0, clip_low=clip_low)
        self.clip_high = require_above(0, clip_high=clip_high)

    def advantages(self, reward_BK: Tensor) -> Tensor:
        return group_advantages(reward_BK, normalise=self.normalise_advantages)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        ratio_E = tokens.ratio.detach()
        limited_E = ratio_E.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLoss(-limited_E * tokens.advantage_E * tokens.logprob_E, limited_E != ratio_E)
