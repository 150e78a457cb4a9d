"""The gradient of a batch's loss: micro-batch by micro-batch, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from astune.engine.local.allocator import give_back_freed_memory
from astune.schema import TrainerError
from astune.trainer.head import ChunkLoss
from astune.trainer.loss import LossInputs, LossSums, PolicyLoss
from astune.trainer.microbatch import MicroBatch
from astune.trainer.policy_model import PolicyModel


def accumulate_gradient(
    model: PolicyModel, microbatches: Sequence[MicroBatch], loss: PolicyLoss, temperature: float
) -> LossSums:
    """Add the gradient of all of `microbatches` to the buffers of the model's master weights.

    A ratio of sequences is known before any token's loss: a pass of the head alone over the same hidden states finds
    it, so that the head's chunks and the prefix tree stay sums over tokens. A micro-batch holds whole timelines.

    Raises:
        TrainerError: the loss is not finite, or there is nothing to train on; the buffers are clear.
    """
    head = model.head(temperature)
    total: LossSums | None = None
    for microbatch in microbatches:
        hidden_RD = model.hidden(microbatch)
        inputs = microbatch.inputs
        if loss.algorithm.needs_sequence_ratio:
            inputs = inputs.with_sequence_ratios(head.logprobs(hidden_RD.detach(), microbatch.targets))
        give_back_freed_memory()  # of layers, before the head's blocks, and of these before gradients
        sums, grad_RD = head.loss_and_gradient(
            hidden_RD.detach(),
            microbatch.targets,
            _token_loss(inputs, loss),
            entropy_has_gradient=loss.terms.entropy_coef != 0,
        )
        if not math.isfinite(sums.loss):
            model.master_weights.clear_gradients()
            raise _not_finite(float(sums.loss), hidden_RD)
        give_back_freed_memory()
        hidden_RD.backward(grad_RD)
        total = sums if total is None else total + sums
    if total is None:
        raise TrainerError("there is no trained token in this update", hint="this is a defect of astune")
    return total


def _token_loss(inputs: LossInputs, loss: PolicyLoss) -> ChunkLoss:
    return lambda logprob_E, entropy_E, tokens: loss(logprob_E, entropy_E, inputs.select(tokens))


def _not_finite(loss: float, hidden_RD: Tensor) -> TrainerError:
    healthy = bool(torch.isfinite(hidden_RD).all())
    where = "log-probabilities are far from the engine's, or not finite" if healthy else "hidden states are not finite"
    return TrainerError(
        f"the loss is {loss}: the model's {where}",
        hint="no weight was changed; see logprob_diff_max and grad_norm of the steps before, lower "
        "trainer.optim.lr, or set model.dtype to float32",
    )
