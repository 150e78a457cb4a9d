"""The largest differences of astune's algorithms from verl's own of the same name; runs in verl's environment.

->  {"RLOO": 0.0, ...} on its output: of advantages, or of the gradient of each token's log-probability
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu", "VERL_PLATFORM": "cpu"}

from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import FSDPActorConfig

from astune.algorithm import CISPO, DAPO, GRPO, GSPO, RLOO, Algorithm, DrGRPO, ReinforcePlusPlus, group_advantages
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


def of_batch_advantages(lengths: Tensor, *, group_baseline: bool) -> float:
    """Difference of REINFORCE++, in verl's unit: the deviation of n tokens, its squares divided by n - 1.

    verl counts an episode once for each of its tokens. Where these are not equally many, ours is equal for episodes
    that are repeated as often.
    """
    reward_BK = torch.rand(N_GROUPS, N_EPISODES)
    if len(lengths.unique()) == 1:
        own_X = ReinforcePlusPlus(group_baseline=group_baseline).advantages(reward_BK).flatten()
        own_X = own_X.repeat_interleave(lengths)
    else:
        compared_BK = group_advantages(reward_BK, normalise=False) if group_baseline else reward_BK
        own_X = ReinforcePlusPlus().advantages(compared_BK.flatten().repeat_interleave(lengths)[None])[0]
    theirs_X = of_batch(reward_BK.flatten(), lengths, group_baseline=group_baseline)
    n_tokens = len(theirs_X)
    return float((theirs_X * (n_tokens / (n_tokens - 1)) ** 0.5 - own_X).abs().max())


def of_batch(reward_X: Tensor, lengths: Tensor, *, group_baseline: bool) -> Tensor:
    """verl's REINFORCE++ advantages of the tokens of episodes that are so long."""
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(lengths)), lengths - 1] = reward_X
    name = "reinforce_plus_plus_baseline" if group_baseline else "reinforce_plus_plus"
    theirs, _ = get_adv_estimator_fn(name)(
        token_level_rewards=rewards,
        response_mask=mask,
        index=np.arange(len(lengths)) // N_EPISODES,
        config=SimpleNamespace(gamma=1.0),
    )
    return theirs[mask.bool()]


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
    equal = torch.full((len(MASK),), N_TOKENS)
    random = torch.randint(1, N_TOKENS + 1, (len(MASK),))
    documented = of_batch(torch.tensor([1.0, 0.0]), torch.tensor([3, 1]), group_baseline=False)
    differences = {
        "RLOO's advantages": of_advantages(RLOO(), "rloo"),
        "Dr. GRPO's advantages": of_advantages(DrGRPO(), "grpo", norm_adv_by_std_in_grpo=False),
        "GRPO's advantages, in the unit of all episodes": of_advantages(GRPO(), "grpo", scale=unit),
        "REINFORCE++'s advantages": of_batch_advantages(equal, group_baseline=False),
        "REINFORCE++'s advantages by group": of_batch_advantages(equal, group_baseline=True),
        "REINFORCE++'s advantages, episodes counted by tokens": of_batch_advantages(random, group_baseline=False),
        "REINFORCE++'s advantages by group, counted by tokens": of_batch_advantages(random, group_baseline=True),
        "docs/en/algorithms.md": float((documented - torch.tensor([0.5, 0.5, 0.5, -1.5])).abs().max()),
        "GSPO's loss": of_gradients(GSPO(clip_low=0.1, clip_high=0.15), "gspo", 0.1, 0.15),
        "CISPO's loss": of_gradients(CISPO(clip_low=0.3, clip_high=0.4), "cispo", 0.3, 0.4),
        "REINFORCE++'s loss": of_gradients(ReinforcePlusPlus(clip_low=0.2, clip_high=0.2), "vanilla", 0.2, 0.2),
        "DAPO's loss": of_gradients(DAPO(clip_low=0.2, clip_high=0.28), "vanilla", 0.2, 0.28),
    }
    sys.stdout.write(json.dumps(differences) + "\n")
