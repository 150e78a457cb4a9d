"""What Trinity trains by: advantages that the groups' workflow made, and the local trainer's own loss of them."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn
from trinity.algorithm.algorithm import AlgorithmType
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.common.experience import Experience

from astune.config.schema import LossConfig
from astune.trainer.loss import LossInputs, policy_loss


class WeightedGroups(AlgorithmType):
    """Groups of episodes, their timelines weighed one by one (law 4)."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        here = __name__
        return {
            "sample_strategy": "astune.backbone.trinity.samples.WholeGroups",
            "advantage_fn": f"{here}.AreThere",
            "policy_loss_fn": f"{here}.TokenLoss",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "none",
            "entropy_loss_fn": "none",
        }


class AreThere(AdvantageFn, ExperienceOperatorV1):
    """Advantages come with the experiences."""

    async def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        return exps, {}

    def __call__(self, exps: list[Experience], **_: Any) -> tuple[list[Experience], dict[str, float]]:
        return exps, {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def compute_in_trainer(cls) -> bool:
        return False


class TokenLoss(PolicyLossFn):
    """`astune.trainer.loss.policy_loss` of the tokens in the mask; their weights are in the advantages already."""

    def __init__(self, backend: str = "verl", **loss: Any) -> None:
        super().__init__(backend=backend)
        self._loss = LossConfig(**loss)

    def __call__(  # the metaclass reads the names of what it takes
        self,
        logprob: Tensor,
        old_logprob: Tensor,
        rollout_log_probs: Tensor,
        action_mask: Tensor,
        advantages: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        trained = action_mask.bool()
        advantage_E = advantages[trained].float()
        inputs = LossInputs(
            advantage_E,
            torch.ones_like(advantage_E),
            rollout_log_probs[trained].float(),
            torch.zeros_like(advantage_E, dtype=torch.long),
            old_logprob_E=old_logprob[trained].float(),
        )
        logprob_E = logprob[trained].float()
        loss, _ = policy_loss(logprob_E, torch.zeros_like(logprob_E), inputs, self._loss)
        return loss, {}  # Trinity would average what is to be summed over micro-batches

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}
