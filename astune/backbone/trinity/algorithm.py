"""Trinity's algorithm: advantages from the groups' workflow, and the local trainer's loss."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn
from trinity.algorithm.algorithm import AlgorithmType
from trinity.algorithm.entropy_loss_fn.entropy_loss_fn import EntropyLossFn
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.buffer.operators.experience_operator import ExperienceOperatorV1
from trinity.common.experience import Experience

from astune.algorithm import load_algorithm
from astune.backbone.trinity.names import config_of_loss
from astune.trainer.loss import LossInputs, PolicyLoss


class WeightedGroups(AlgorithmType):
    """Groups of episodes, their timelines weighted one by one (law 4)."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {
            "sample_strategy": "astune.backbone.trinity.samples.WholeGroups",
            "advantage_fn": f"{__name__}.AreThere",
            "policy_loss_fn": f"{__name__}.TokenLoss",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "none",
            "entropy_loss_fn": "none",
        }


class WeightedGroupsFromStart(WeightedGroups):
    """The same with a KL term to the starting weights."""

    use_reference = True

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return super().default_config() | {"policy_loss_fn": f"{__name__}.TokenLossFromStart"}


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
    """`astune.trainer.loss.PolicyLoss` of the tokens in the mask; the entropy term is `TokenEntropy`'s.

    Args:
        config: the JSON of the configuration's parts that say which loss it is.
        base_dir: the folder of the YAML file, for an algorithm of the user's own.
    """

    def __init__(self, backend: str = "verl", *, config: str, base_dir: str | None = None) -> None:
        super().__init__(backend=backend)
        parsed = config_of_loss(config)
        algorithm = load_algorithm(parsed, None if base_dir is None else Path(base_dir))
        self._loss = PolicyLoss(algorithm, parsed.trainer.loss)

    def __call__(  # Trinity's metaclass reads the names of what it takes
        self,
        logprob: Tensor,
        old_logprob: Tensor,
        rollout_log_probs: Tensor,
        action_mask: Tensor,
        advantages: Tensor,
        token_weights: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        return self._of(logprob, old_logprob, rollout_log_probs, action_mask, advantages, token_weights), {}

    def _of(
        self,
        logprob: Tensor,
        old_logprob: Tensor,
        rollout_log_probs: Tensor,
        action_mask: Tensor,
        advantages: Tensor,
        token_weights: Tensor,
        ref_logprob: Tensor | None = None,
    ) -> Tensor:
        """Without measures of it: Trinity would average over micro-batches what is to be summed.

        Args:
            token_weights: [B], of the tokens of each row; all others are [B, T].
        """
        trained = action_mask.bool()
        advantage_E, logprob_E = advantages[trained].float(), logprob[trained].float()
        inputs = LossInputs(
            advantage_E,
            _of_each(token_weights, trained),
            rollout_log_probs[trained].float(),
            torch.zeros_like(advantage_E, dtype=torch.long),
            torch.arange(len(trained), device=trained.device)[:, None].expand(trained.shape)[trained],
            old_logprob_E=old_logprob[trained].float(),
            reference_logprob_E=None if ref_logprob is None else ref_logprob[trained].float(),
        )
        if self._loss.algorithm.needs_sequence_ratio:  # a row is a whole timeline
            inputs = inputs.with_sequence_ratios(logprob_E)
        loss, _ = self._loss(logprob_E, torch.zeros_like(logprob_E), inputs)
        return loss

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}


class TokenLossFromStart(TokenLoss):
    """The loss with the KL term, for which Trinity's reference model says what the starting weights do."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        logprob: Tensor,
        old_logprob: Tensor,
        rollout_log_probs: Tensor,
        action_mask: Tensor,
        advantages: Tensor,
        token_weights: Tensor,
        ref_logprob: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, float]]:
        taken = (logprob, old_logprob, rollout_log_probs, action_mask, advantages, token_weights)
        return self._of(*taken, ref_logprob), {}


class TokenEntropy(EntropyLossFn):
    """The entropy term of `PolicyLoss`; Trinity subtracts it."""

    def __init__(self, entropy_coef: float) -> None:
        self._coef = entropy_coef

    def __call__(
        self, entropy: Tensor, action_mask: Tensor, *, token_weights: Tensor, **_: Any
    ) -> tuple[Tensor, dict[str, float]]:
        trained = action_mask.bool()
        return self._coef * (_of_each(token_weights, trained) * entropy[trained].float()).sum(), {}


def _of_each(weight_B: Tensor, trained: Tensor) -> Tensor:
    """Weight of each trained token, [E]."""
    return weight_B.float()[:, None].expand(trained.shape)[trained]
