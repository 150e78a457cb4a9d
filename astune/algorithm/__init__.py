"""Algorithms: advantages, token weights and the loss of a token, one class an algorithm.

Write one by deriving from `Algorithm`; `docs/en/algorithms.md` shows how. The rest of astune knows no algorithm.
Nothing here imports torch before something is computed.
"""

from astune.algorithm.advantages import advantages_of, group_advantages, without_variance
from astune.algorithm.base import Algorithm, Preference, TokenLoss, Tokens, TokenWeights
from astune.algorithm.cispo import CISPO
from astune.algorithm.clipped import ClippedAlgorithm, token_loss_is_clipped
from astune.algorithm.dapo import DAPO
from astune.algorithm.dpo import DPO
from astune.algorithm.grpo import GRPO, DrGRPO
from astune.algorithm.gspo import GSPO
from astune.algorithm.loading import ALGORITHMS, load_algorithm
from astune.algorithm.reinforce_plus_plus import ReinforcePlusPlus
from astune.algorithm.rloo import RLOO
from astune.algorithm.supervised import Supervised

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "DPO",
    "GRPO",
    "GSPO",
    "RLOO",
    "Algorithm",
    "ClippedAlgorithm",
    "DrGRPO",
    "Preference",
    "ReinforcePlusPlus",
    "Supervised",
    "TokenLoss",
    "TokenWeights",
    "Tokens",
    "advantages_of",
    "group_advantages",
    "load_algorithm",
    "token_loss_is_clipped",
    "without_variance",
]
