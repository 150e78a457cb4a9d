"""The gradient of a batch's loss: micro-batch by micro-batch, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from astune.config.schema import LossConfig
from astune.schema import TrainerError
from astune.trainer.head import TokenLoss
from astune.trainer.loss import LossInputs, LossSums, policy_loss
from astune.trainer.microbatch import MicroBatch
from astune.trainer.policy_model import PolicyModel


def accumulate_gradient(
    model: PolicyModel, microbatches: Sequence[MicroBatch], config: LossConfig, temperature: float
) -> LossSums:
    """Add the gradient of all of `microbatches` to the buffers of the model's masters.

    Raises:
        TrainerError: the loss is not finite, or there is nothing to train on; the buffers are clear.
    """
    head = model.head(temperature)
    total: LossSums | None = None
    for microbatch in microbatches:
        hidden_RD = model.hidden(microbatch)
        sums, grad_RD = head.loss_and_gradient(
            hidden_RD.detach(),
            microbatch.targets,
            _token_loss(microbatch.inputs, config),
            entropy_has_gradient=config.entropy_coef != 0,
        )
        if not math.isfinite(sums.loss):
            model.masters.zero_gradients()
            raise _not_finite(float(sums.loss), hidden_RD)
        hidden_RD.backward(grad_RD)
        total = sums if total is None else total + sums
    if total is None:
        raise TrainerError("there is no trained token in this update", hint="this is a defect of astune")
    return total


def _token_loss(inputs: LossInputs, config: LossConfig) -> TokenLoss:
    return lambda logprob_E, entropy_E, tokens: policy_loss(logprob_E, entropy_E, inputs.select(tokens), config)


def _not_finite(loss: float, hidden_RD: Tensor) -> TrainerError:
    healthy = bool(torch.isfinite(hidden_RD).all())
    where = "log-probabilities are far from the engine's, or not finite" if healthy else "hidden states are not finite"
    return TrainerError(
        f"the loss is {loss}: the model's {where}",
        hint="no weight was changed; see logprob_diff_max and grad_norm of the steps before, lower "
        "trainer.optim.lr, or set model.dtype to float32",
    )
