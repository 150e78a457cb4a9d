"""TRL's own loss of a batch and its gradient; runs in TRL's environment, cases on its input, gradients on its output.

[{"loss_type", "level", "low", "high", "longest", "logp", "old", "mask", "advantages"}]  ->  [{"loss", "gradient"}]
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer


def loss_of(case: dict[str, Any]) -> dict[str, Any]:
    logp = torch.tensor(case["logp"], dtype=torch.float64, requires_grad=True)
    old, mask = (torch.tensor(case[name], dtype=torch.float64) for name in ("old", "mask"))
    same = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=True)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=case["level"],
        beta=0.0,
        loss_type=case["loss_type"],
        epsilon_low=case["low"],
        epsilon_high=case["high"],
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        use_vllm=False,
        model=SimpleNamespace(training=False),
        max_completion_length=case["longest"],
        accelerator=same,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(case["advantages"], dtype=torch.float64),
        "old_per_token_logps": old,
        "num_items_in_batch": mask.sum(),
    }
    loss: Any = GRPOTrainer._compute_loss(trainer, None, inputs)  # pyright: ignore
    loss.backward()
    assert logp.grad is not None
    return {"loss": loss.item(), "gradient": (logp.grad * mask).tolist()}


json.dump([loss_of(case) for case in json.load(sys.stdin)], sys.stdout)
