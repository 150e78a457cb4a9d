"""verl's own loss, and beside it the terms of law 4's that it does not weight token by token: KL and entropy."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

from astune.config.schema import LossConfig
from astune.trainer.loss import kl_to_start

SCALE = "token_scale"
"""Scale of a batch: its `BatchScale.of_weights`."""


def loss_of(actor: Any, loss: LossConfig) -> Any:
    """The loss for verl's workers; None if verl's own is all of it.

    Args:
        actor: verl's configuration of the actor.
    """
    if not loss.kl_coef and not loss.entropy_coef:
        return None
    return partial(with_terms, actor=omega_conf_to_dataclass(actor), loss=loss)


def with_terms(
    model_output: Mapping[str, Tensor], data: Any, dp_group: Any = None, *, actor: Any, loss: LossConfig
) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss of a micro-batch plus `weight * (kl_coef * KL - entropy_coef * entropy)` of each trained token.

    Args:
        model_output: "log_probs" and, with an entropy term, "entropy".
        data: besides what verl's loss reads "token_weights", `SCALE`, and with a KL term "ref_log_prob".
    """
    value, metrics = ppo_loss(actor, model_output, data, dp_group)
    names = ["response_mask", "token_weights", *(["ref_log_prob"] if loss.kl_coef else [])]
    padded = data.select(*names).to_padded_tensor()
    mask = padded["response_mask"].bool()
    weights = padded["token_weights"][
        :, : mask.shape[1]
    ]  # a row that verl fills up with may have longer ones, unmasked
    term_E = torch.zeros_like(weights[mask])
    if loss.kl_coef:
        logprob_E = no_padding_2_padding(model_output["log_probs"], data)[mask]
        term_E = term_E + loss.kl_coef * kl_to_start(logprob_E, padded["ref_log_prob"][mask])
    if loss.entropy_coef:
        term_E = term_E - loss.entropy_coef * no_padding_2_padding(model_output["entropy"], data)[mask]
    terms = torch.zeros_like(weights).masked_scatter(mask, weights[mask] * data[SCALE] * term_E)
    return value + agg_loss(terms, mask, actor.loss_agg_mode, **actor.global_batch_info), metrics
