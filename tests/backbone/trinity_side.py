"""What Trinity's own functions make of groups; runs in Trinity's environment, rows on its input, gradients on output.

{"scheme", "loss": {...}, "ranks", "groups": {uid: [row, ...]}}, a row with "policy" and "old"
->  [{"uid", "advantages": [...], "mask": [...], "gradient": [...]}], of the response's tokens of what is trained
"""

from __future__ import annotations

import json
import sys
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
from astune.backbone.trinity.samples import experiences_of, told, weighed

ALGORITHM = "astune.backbone.trinity.algorithm.WeightedGroups"
_FIELDS = ("prompt_ids", "response_ids", "mask", "logprobs", "rewards", "versions", "episode_id", "messages", "dropped")


def algorithm(loss: dict[str, Any]) -> AlgorithmConfig:
    config = AlgorithmConfig(algorithm_type=ALGORITHM, policy_loss_fn_args=loss, kl_loss_fn_args={})
    for name, value in ALGORITHM_TYPE.get(ALGORITHM).default_config().items():
        setattr(config, name, value)
    config.entropy_loss_fn_args = ENTROPY_LOSS_FN.get(config.entropy_loss_fn).default_args()
    return config


def main() -> None:
    said = json.load(sys.stdin)
    read: list[Experience] = []
    of: dict[tuple[str, int], dict[str, Any]] = {}
    for uid, rows in said["groups"].items():
        made = experiences_of([Row(**{name: row[name] for name in _FIELDS}) for row in rows], uid=uid)
        of |= {(uid, one.eid.run): row for one, row in zip(made, rows, strict=True)}
        read += made
    read = Experience.deserialize_many(Experience.serialize_many(read))  # as through Trinity's queue
    trained = weighed(read, said["scheme"], n_ranks=said["ranks"])
    filling = {"old": [], "policy": []}  # of no weight, where ranks could not share the batch equally
    rows = [of.get((told(one)["uid"], one.eid.run), filling) for one in trained]

    batch = to_data_proto(trained, 0, LlamaConfig(), get_logger("side"))
    width = batch.batch["responses"].shape[1]
    old = torch.tensor([[*row["old"], *[0.0] * (width - len(row["old"]))] for row in rows])
    read_T = [one.prompt_length for one in trained]
    answers_T = [len(one.tokens) - one.prompt_length for one in trained]
    batch.batch["old_log_probs"] = old
    micro = left_right_2_no_padding(batch.to_tensordict())
    # verl reads what follows a token at the place of the token before it
    says = [
        [*row["policy"], *[0.0] * (length - len(row["policy"]))] for row, length in zip(rows, answers_T, strict=True)
    ]
    policy = torch.cat([torch.tensor([*[0.0] * read, *said]) for read, said in zip(read_T, says, strict=True)])
    policy = policy.roll(-1).requires_grad_()
    offsets = micro["input_ids"].offsets()
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(policy, offsets=offsets)}
    tu.assign_non_tensor(micro, global_batch_size=len(rows))
    assert isinstance(micro, TensorDict)
    loss, _ = build_trinity_loss(algorithm(said["loss"]))(output, micro)
    [gradient] = torch.autograd.grad(loss, policy)
    gradient = gradient.roll(1)
    answers, start = [], 0
    for number, one in enumerate(trained):
        first, start = start + one.prompt_length, start + len(one.tokens)
        length = start - first
        answers.append(
            {
                "uid": told(one)["uid"],
                "advantages": batch.batch["advantages"][number][:length].tolist(),
                "mask": batch.batch["response_mask"][number][:length].int().tolist(),
                "gradient": gradient[first:start].tolist(),
            }
        )
    json.dump(answers, sys.stdout)


main()
