"""What verl's own functions make of rows; runs in verl's environment, rows on its input, gradients on its output.

{"scheme", "loss": {...}, "ranks", "rows": [{"uid", "prompt_ids", "response_ids", "mask", "logprobs", "advantages", ...,
                                    "policy": [...], "old": [...], "start": [...], "entropy": [...]}]}
->  [{"advantages": [...], "importance": [...], "gradient": [...], "entropy_gradient": [...]}], of the response's tokens

Each row is a micro-batch, beside a row that verl fills a batch up with, on one of several ranks; gradients are averaged
over ranks.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields as fields_in
from typing import Any

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu", "VERL_PLATFORM": "cpu"}

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from astune.backbone.cluster.rows import BatchScale, Row
from astune.backbone.verl import estimator
from astune.backbone.verl.loss import SCALE, with_terms
from astune.backbone.verl.settings import clip_ratios
from astune.backbone.verl.workers import fields_of
from astune.config.schema import AstuneConfig, LossConfig

_FIELDS = tuple(field.name for field in fields_in(Row))
_COMPUTED = ("old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob")


def nested(values: list[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(one, dtype=dtype) for one in values], layout=torch.jagged)


def packed(row: dict[str, Any], name: str) -> torch.Tensor:
    """As the model says it of all tokens: verl reads what follows a token at the place of the token before it."""
    return torch.tensor([*[0.0] * len(row["prompt_ids"]), *row[name]]).roll(-1).requires_grad_()


def filling(fields: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What verl fills a batch up with, made of the longest row, and what its trainer has computed of it."""
    longest = max(fields, key=lambda one: len(one["responses"]))
    made, _ = construct_minimal_padding_template(longest, {}, 0)
    computed = {name: torch.zeros(1) for name in _COMPUTED}
    return {name: made[name] for name in ("prompts", "responses", "response_mask", "token_weights")} | computed


def loss_of(
    rows: list[dict[str, torch.Tensor]], output: dict[str, torch.Tensor], said: dict[str, Any], scale: float
) -> torch.Tensor:
    """Of a micro-batch, on one of `dp_size` ranks that share the batch."""
    whole = {"prompts", "responses", "response_mask"}
    columns = {
        name: nested([row[name] for row in rows], torch.int64 if name in whole else torch.float32) for name in rows[0]
    }
    micro = TensorDict(columns, batch_size=len(rows))
    tu.assign_non_tensor(micro, dp_size=said["ranks"], batch_num_tokens=1, global_batch_size=1, **{SCALE: scale})
    terms = LossConfig(**said["loss"])
    ratios = {key.rpartition(".")[2]: value for key, value in clip_ratios(AstuneConfig()).items()}
    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **said["actor"], **ratios)
    if terms.kl_coef or terms.entropy_coef:
        return with_terms(output, micro, actor=actor, loss=terms)[0]
    return ppo_loss(actor, {"log_probs": output["log_probs"]}, micro)[0]


def main() -> None:
    said = json.load(sys.stdin)
    rows: list[dict[str, Any]] = said["rows"]
    estimator.register(said["scheme"])
    fields = [fields_of(Row(**{name: row[name] for name in _FIELDS}), row["uid"]) for row in rows]
    mask = nested([row["mask"] for row in rows], torch.int64)
    batch = {
        "response_mask": mask,
        "rm_scores": nested([one["rm_scores"] for one in fields]),
        "rollout_log_probs": nested([one["rollout_log_probs"] for one in fields]),
        "old_log_probs": nested([row["old"] for row in rows]),
    }
    data = DataProto(batch=TensorDict(batch, batch_size=len(rows)).to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([one["uid"] for one in fields], dtype=object)
    correction = OmegaConf.create(said["correction"])
    data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    keys = [f"{row['uid']}_{number}_0" for number, row in enumerate(rows)]
    data = compute_advantage_for_multi_trajectories(data, keys, estimator.NAME, config=OmegaConf.create({}))

    taught = [(row["uid"], sum(row["mask"]), True) for row in rows if row["episode_id"]]
    scale, fill = BatchScale.count(taught).of_weights(said["scheme"]), filling(fields)
    nothing = torch.zeros(len(fill["prompts"]) + 1)
    told: list[dict[str, list[float]]] = []
    for number, (row, one) in enumerate(zip(rows, fields, strict=True)):
        first, length = len(row["prompt_ids"]), len(row["response_ids"])
        advantages, importance = (data.batch[name][number][:length] for name in ("advantages", "rollout_is_weights"))
        computed = (torch.tensor(row["old"]), advantages, importance, torch.tensor(row["start"]))
        real = {name: one[name] for name in ("prompts", "responses", "response_mask", "token_weights")}
        real |= dict(zip(_COMPUTED, computed, strict=True))
        policy, entropy = packed(row, "policy"), packed(row, "entropy")
        output = {"log_probs": torch.cat([policy, nothing]), "entropy": torch.cat([entropy, nothing])}
        loss = loss_of([real, fill], output, said, scale)
        gradients = torch.autograd.grad(loss, (policy, entropy), materialize_grads=True)
        gradient, entropy_gradient = (part.roll(1)[first:] / said["ranks"] for part in gradients)
        told.append(
            {
                "advantages": advantages.tolist(),
                "importance": importance.tolist(),
                "gradient": gradient.tolist(),
                "entropy_gradient": entropy_gradient.tolist(),
            }
        )
    json.dump(told, sys.stdout)


main()
