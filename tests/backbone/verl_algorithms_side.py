"""The largest differences of astune's algorithms from verl's own of the same name; runs in verl's environment.

->  {"RLOO": 0.0, ...} on its output: of advantages, or of the gradient of each token's log-probability
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu", "VERL_PLATFORM": "cpu"}

import numpy as np
import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import FSDPActorConfig

from astune.algorithm import CISPO, DAPO, GRPO, GSPO, RLOO, Algorithm, DrGRPO
from astune.algorithm.base import Tokens

N_GROUPS, N_EPISODES, N_TOKENS = 5, 4, 6
MASK = torch.ones(N_GROUPS * N_EPISODES, N_TOKENS)


def of_advantages(ours: Algorithm, name: str, *, scale: float = 1.0, **more: object) -> float:
    reward_BK = torch.rand(N_GROUPS, N_EPISODES)
    rewards = torch.zeros_like(MASK)
    rewards[:, -1] = reward_BK.flatten()
    group = np.repeat(np.arange(N_GROUPS), N_EPISODES)
    theirs, _ = get_adv_estimator_fn(name)(token_level_rewards=rewards, response_mask=MASK, index=group, **more)
    return float((theirs[:, 0] * scale - ours.advantages(reward_BK).flatten()).abs().max())


def of_gradients(ours: Algorithm, name: str, low: float, high: float) -> float:
    old, advantage = -torch.rand_like(MASK) - 0.5, torch.randn_like(MASK)
    policy = (old + 0.5 * torch.randn_like(MASK)).requires_grad_()
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=1e9,
    )
    loss, _ = get_policy_loss_fn(name)(old, policy, advantage, MASK, loss_agg_mode="token-sum", config=config)
    (theirs,) = torch.autograd.grad(loss, policy)
    mean = (policy - old).detach().mean(dim=1).repeat_interleave(N_TOKENS)
    tokens = Tokens(policy.flatten(), old.flatten(), advantage.flatten(), mean)
    (own,) = torch.autograd.grad(ours.token_loss(tokens).loss_E.sum(), policy)
    return float((theirs - own).abs().max())


if __name__ == "__main__":
    torch.manual_seed(0)
    unit = (N_EPISODES / (N_EPISODES - 1)) ** 0.5
    differences = {
        "RLOO's advantages": of_advantages(RLOO(), "rloo"),
        "Dr. GRPO's advantages": of_advantages(DrGRPO(), "grpo", norm_adv_by_std_in_grpo=False),
        "GRPO's advantages, in the unit of all episodes": of_advantages(GRPO(), "grpo", scale=unit),
        "GSPO's loss": of_gradients(GSPO(clip_low=0.1, clip_high=0.15), "gspo", 0.1, 0.15),
        "CISPO's loss": of_gradients(CISPO(clip_low=0.3, clip_high=0.4), "cispo", 0.3, 0.4),
        "DAPO's loss": of_gradients(DAPO(clip_low=0.2, clip_high=0.28), "vanilla", 0.2, 0.28),
    }
    sys.stdout.write(json.dumps(differences) + "\n")
