"""The clipped policy gradient of PPO, token by token, which most algorithms share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.base import Algorithm, TokenLoss, Tokens

if TYPE_CHECKING:
    from torch import Tensor


def clipped_loss(ratio_E: Tensor, advantage_E: Tensor, *, clip_low: float, clip_high: float) -> TokenLoss:
    """PPO's loss: - min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A).

        clip_low 0.2, clip_high 0.28
        ratio 1.3, A 1    ->  -1.28, clipped       ratio 0.7, A 1    ->  -0.7
        ratio 1.5, A -1   ->   1.5                 ratio 0.75, A -1  ->   0.8, clipped

    Source: Schulman et al. 2017, arXiv 1707.06347, eq. 7; Yu et al. 2025, arXiv 2503.14476, for two limits.
    """
    gain_E = ratio_E * advantage_E
    limit_E = ratio_E.clamp(1 - clip_low, 1 + clip_high) * advantage_E
    return TokenLoss(-gain_E.minimum(limit_E), (gain_E > limit_E).detach())


class ClippedAlgorithm(Algorithm):
    """An algorithm with PPO's loss of a token. verl trains these by its own implementation of it.

    Args:
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
    """

    def __init__(self, *, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        self.clip_low = require_above(0, clip_low=clip_low)
        self.clip_high = require_above(0, clip_high=clip_high)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return clipped_loss(tokens.ratio, tokens.advantage_E, clip_low=self.clip_low, clip_high=self.clip_high)


def token_loss_is_clipped(algorithm: Algorithm) -> bool:
    """Return whether the loss of a token is PPO's, which engines have an implementation of their own of."""
    return type(algorithm).token_loss is ClippedAlgorithm.token_loss


def require_above(limit: float, **named: float) -> float:
    """The only one of `named`, which is refused by name where it is not above `limit`."""
    [(name, value)] = named.items()
    if not value > limit:
        raise ValueError(f"{name} is {value:g}, and has to be above {limit:g}")
    return value
