"""Direct preference optimisation: of two answers to a task, the chosen one becomes the likelier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astune.algorithm.base import Algorithm, LearnsFrom, TokenLoss, Tokens, TokenWeights
from astune.algorithm.clipped import require_above
from astune.schema import TrainerError

if TYPE_CHECKING:
    from torch import Tensor


class DPO(Algorithm):
    """The mean over pairs of - log sigmoid(beta * margin); a margin is how much more than the starting model the policy
    prefers the chosen answer:

        beta 0.1    log policy / start    chosen 2.0    rejected -3.0    ->   margin 5, loss 0.474
        at the start                                                     ->   margin 0, loss 0.693

    Nothing is sampled: the answers are the tasks' own. A token's loss has its share of the pair's value, and the
    pair's gradient: - beta * sigmoid(- beta * margin), with the sign of its answer.

    Args:
        beta: how much the policy is held to the starting model; smaller moves further.

    Source: Rafailov et al. 2023, arXiv 2305.18290, eq. 7.
    """

    token_weights: TokenWeights = "group"
    learns_from: LearnsFrom = "preferences"

    def __init__(self, *, beta: float = 0.1) -> None:
        self.beta = require_above(0, beta=beta)

    def advantages(self, reward_BK: Tensor) -> Tensor:
        return reward_BK.double() * 2 - 1  # 1 for the chosen answer, -1 for the rejected one

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        if tokens.preference is None:
            raise TrainerError("the margins of preferences were not computed", hint="this is a defect of astune")
        from torch.nn.functional import softplus

        margin_E, n_tokens_E = tokens.preference
        scaled_E = self.beta * margin_E
        value_E = tokens.advantage_E.abs() * softplus(-scaled_E) / n_tokens_E
        slope_E = -self.beta * (-scaled_E).sigmoid() * tokens.advantage_E
        return TokenLoss(value_E + slope_E * (tokens.logprob_E - tokens.logprob_E.detach()))
