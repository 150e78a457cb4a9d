"""Supervised fine-tuning: the likelihood of given answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.base import Algorithm, LearnsFrom, TokenLoss, Tokens, TokenWeights

if TYPE_CHECKING:
    from torch import Tensor


class Supervised(Algorithm):
    """Cross entropy of the assistant's tokens: their mean negative log-likelihood.

        log-probabilities -0.5 -1.5   ->   loss 1.0

    Nothing is sampled: episodes are the tasks' own conversations, or their reference answers.
    """

    token_weights: TokenWeights = "token"
    learns_from: LearnsFrom = "demonstrations"

    def advantages(self, reward_BK: Tensor) -> Tensor:
        return reward_BK.double().clamp(min=1.0, max=1.0)  # NaN stays

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantage_E * tokens.logprob_E)
