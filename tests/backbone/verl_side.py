"""What verl's own functions make of rows; runs in verl's environment, rows on its input, gradients on its output.

{"scheme", "loss": {...}, "rows": [{"uid", "prompt_ids", "response_ids", "mask", "logprobs", "advantages", ...,
                                    "policy": [...], "old": [...], "start": [...], "entropy": [...]}]}
->  [{"advantages": [...], "importance": [...], "gradient": [...], "entropy_gradient": [...]}], of the response's tokens
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "astune.backbone.verl.cpu", "VERL_PLATFORM": "cpu"}

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_to_nested

from astune.backbone.cluster.rows import BatchScale, Row
from astune.backbone.verl import estimator
from astune.backbone.verl.loss import SCALE, with_terms
from astune.backbone.verl.workers import fields_of
from astune.config.schema import LossConfig

_FIELDS = ("prompt_ids", "response_ids", "mask", "logprobs", "advantages", "token_weight")


def nested(values: list[list[float]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(one, dtype=dtype) for one in values], layout=torch.jagged)


def packed(rows: list[dict[str, Any]], name: str) -> torch.Tensor:
    """As the model says it of all tokens: verl reads what follows a token at the place of the token before it."""
    said = torch.cat([torch.tensor([*[0.0] * len(row["prompt_ids"]), *row[name]]) for row in rows])
    return said.roll(-1).requires_grad_()


def main() -> None:
    said = json.load(sys.stdin)
    rows: list[dict[str, Any]] = said["rows"]
    estimator.register(said["scheme"])
    fields = [fields_of(Row(*(row[name] for name in _FIELDS), [0], dropped=row["dropped"]), row["uid"]) for row in rows]
    mask = nested([row["mask"] for row in rows], torch.int64)
    batch = {
        "response_mask": mask,
        "rm_scores": nested([one["rm_scores"].tolist() for one in fields]),
        "rollout_log_probs": nested([one["rollout_log_probs"].tolist() for one in fields]),
        "old_log_probs": nested([row["old"] for row in rows]),
    }
    data = DataProto(batch=TensorDict(batch, batch_size=len(rows)).to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([one["uid"] for one in fields], dtype=object)
    correction = OmegaConf.create(said["correction"])
    data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
    keys = [f"{row['uid']}_{number}_0" for number, row in enumerate(rows)]
    data = compute_advantage_for_multi_trajectories(data, keys, estimator.NAME, config=OmegaConf.create({}))

    policy, entropy = packed(rows, "policy"), packed(rows, "entropy")
    inputs = {
        "prompts": nested([row["prompt_ids"] for row in rows], torch.int64),
        "responses": nested([row["response_ids"] for row in rows], torch.int64),
        "response_mask": mask,
        "old_log_probs": batch["old_log_probs"],
        "advantages": response_to_nested(data.batch["advantages"], mask),
        "rollout_is_weights": response_to_nested(data.batch["rollout_is_weights"], mask),
        "token_weights": nested([one["token_weights"].tolist() for one in fields]),
        "ref_log_prob": nested([row["start"] for row in rows]),
    }
    micro = TensorDict(inputs, batch_size=len(rows))
    tu.assign_non_tensor(micro, dp_size=1, batch_num_tokens=int(sum(map(sum, (row["mask"] for row in rows)))))
    tu.assign_non_tensor(micro, global_batch_size=len(rows))
    taught = [(row["uid"], sum(row["mask"]), True) for row in rows if row["episode_id"]]
    tu.assign_non_tensor(micro, **{SCALE: BatchScale.count(taught).of_weights(said["scheme"])})
    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **said["actor"])
    terms, output = LossConfig(**said["loss"]), {"log_probs": policy}
    if terms.kl_coef or terms.entropy_coef:
        loss, _ = with_terms(output | {"entropy": entropy}, micro, actor=actor, loss=terms)
    else:
        loss, _ = ppo_loss(actor, output, micro)
    gradients = torch.autograd.grad(loss, (policy, entropy), materialize_grads=True)
    gradient, entropy_gradient = (one.roll(1) for one in gradients)
    told, start = [], 0
    for number, row in enumerate(rows):
        first, start = start + len(row["prompt_ids"]), start + len(row["prompt_ids"]) + len(row["response_ids"])
        length = start - first
        told.append(
            {
                "advantages": data.batch["advantages"][number][:length].tolist(),
                "importance": data.batch["rollout_is_weights"][number][:length].tolist(),
                "gradient": gradient[first:start].tolist(),
                "entropy_gradient": entropy_gradient[first:start].tolist(),
            }
        )
    json.dump(told, sys.stdout)


main()
