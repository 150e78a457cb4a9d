"""What Trinity's own functions make of groups; runs in Trinity's environment, rows on its input, gradients on output.

{"scheme", "loss": {...}, "ranks", "groups": {uid: [row, ...]}}, a row with "policy", "old", "start" and "entropy"
->  [{"uid", "advantages": [...], "weight", "mask": [...], "gradient": [...], "entropy_gradient": [...]}], of the
    response's tokens of what is trained
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any

import torch
from tensordict import TensorDict
from transformers import LlamaConfig
from trinity.algorithm import ALGORITHM_TYPE, ENTROPY_LOSS_FN
from trinity.common.config import AlgorithmConfig
from trinity.common.experience import Experience
from trinity.trainer.verl.losses import build_trinity_loss
from trinity.trainer.verl.utils import to_data_proto
from trinity.utils.log import get_logger
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

from astune.backbone.cluster.rows import Row
from astune.backbone.trinity.samples import experiences_of, group_info, scaled
from astune.backbone.trinity.settings import algorithm_of
from astune.config.schema import AstuneConfig

_FIELDS = tuple(field.name for field in fields(Row))
_PARTS = ("algorithm_type", "policy_loss_fn_args", "entropy_loss_fn", "entropy_loss_fn_args")


def algorithm(loss: dict[str, Any]) -> AlgorithmConfig:
    """As a run with this loss has it."""
    algorithm = algorithm_of(AstuneConfig.model_validate({"trainer": {"loss": loss}}), None)
    config = AlgorithmConfig(kl_loss_fn_args={}, **{name: algorithm[name] for name in _PARTS if name in algorithm})
    for name, value in ALGORITHM_TYPE.get(config.algorithm_type).default_config().items():
        if name not in algorithm:
            setattr(config, name, value)
    if "entropy_loss_fn" not in algorithm:
        config.entropy_loss_fn_args = ENTROPY_LOSS_FN.get(config.entropy_loss_fn).default_args()
    return config


def packed(trained: list[Experience], rows: list[dict[str, Any]], name: str) -> torch.Tensor:
    """As the model says it of all tokens: verl reads what follows a token at the place of the token before it."""
    said: list[float] = []
    for one, row in zip(trained, rows, strict=True):
        said += [0.0] * one.prompt_length + row[name]
        said += [0.0] * (len(one.tokens) - one.prompt_length - len(row[name]))
    return torch.tensor(said).roll(-1).requires_grad_()


def main() -> None:
    said = json.load(sys.stdin)
    read: list[Experience] = []
    of: dict[tuple[str, int], dict[str, Any]] = {}
    for uid, rows in said["groups"].items():
        made = experiences_of([Row(**{name: row[name] for name in _FIELDS}) for row in rows], uid=uid)
        of |= {(uid, one.eid.run): row for one, row in zip(made, rows, strict=True)}
        read += made
    read = Experience.deserialize_many(Experience.serialize_many(read))  # as through Trinity's queue
    trained = scaled(read, said["scheme"], n_ranks=said["ranks"])
    filling = {
        "old": [],
        "policy": [],
        "start": [],
        "entropy": [],
    }  # of no weight, where ranks could not share the batch equally
    rows = [of.get((group_info(one)["uid"], one.eid.run), filling) for one in trained]

    batch = to_data_proto(trained, 0, LlamaConfig(), get_logger("side"))
    width = batch.batch["responses"].shape[1]
    for name, theirs in (("old", "old_log_probs"), ("start", "ref_log_prob")):
        batch.batch[theirs] = torch.tensor([[*row[name], *[0.0] * (width - len(row[name]))] for row in rows])
    micro = left_right_2_no_padding(batch.to_tensordict())
    policy, entropy = packed(trained, rows, "policy"), packed(trained, rows, "entropy")
    offsets = micro["input_ids"].offsets()
    output = {
        "log_probs": torch.nested.nested_tensor_from_jagged(policy, offsets=offsets),
        "entropy": torch.nested.nested_tensor_from_jagged(entropy, offsets=offsets),
    }
    tu.assign_non_tensor(micro, global_batch_size=len(rows))
    assert isinstance(micro, TensorDict)
    loss, _ = build_trinity_loss(algorithm(said["loss"]))(output, micro)
    gradients = torch.autograd.grad(loss, (policy, entropy), materialize_grads=True)
    gradient, entropy_gradient = (one.roll(1) for one in gradients)
    answers, start = [], 0
    for number, one in enumerate(trained):
        first, start = start + one.prompt_length, start + len(one.tokens)
        length = start - first
        answers.append(
            {
                "uid": group_info(one)["uid"],
                "advantages": batch.batch["advantages"][number][:length].tolist(),
                "weight": float(batch.batch["token_weights"][number]),
                "mask": batch.batch["response_mask"][number][:length].int().tolist(),
                "gradient": gradient[first:start].tolist(),
                "entropy_gradient": entropy_gradient[first:start].tolist(),
            }
        )
    json.dump(answers, sys.stdout)


main()
