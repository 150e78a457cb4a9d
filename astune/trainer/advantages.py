"""Advantages: how much better an episode did than its own group.

A baseline counts episodes, never timelines or tokens (law 5). Nothing here knows what an episode said.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from astune.schema import EpisodeGroup


def group_advantages(reward_BK: Tensor, *, normalise: bool) -> Tensor:
    """Advantage of each episode against its own group.

        rewards 1 0 0 0, normalise=False   ->  0.75 -0.25 -0.25 -0.25
        rewards 1 0 0 0, normalise=True    ->  1.73 -0.58 -0.58 -0.58   (divided by 0.433)
        rewards 1 1 1 1                    ->  0 0 0 0
        rewards 1 0 NaN                    ->  the first two of a group of two, and NaN

    Args:
        reward_BK: rewards, one row a task, one column an episode; NaN where an episode has none.
        normalise: divide by the group's standard deviation (GRPO); False is Dr. GRPO.

    Returns:
        advantages [B, K] in float64; 0 for a group whose rewards are all equal, NaN where the reward was.

    Source: Shao et al. 2024, arXiv 2402.03300, eq. 3; Liu et al. 2025, arXiv 2503.20783 for normalise=False.
    """
    reward_BK = reward_BK.double()
    centred_BK = reward_BK - reward_BK.nanmean(dim=1, keepdim=True)
    deviation_B1 = centred_BK.square().nanmean(dim=1, keepdim=True).sqrt()
    magnitude_B1 = reward_BK.nan_to_num().abs().amax(dim=1, keepdim=True)
    # Equal rewards differ from their mean by rounding; dividing that by itself would invent advantages.
    flat_B1 = deviation_B1 <= 1e-9 * magnitude_B1
    scale_B1 = deviation_B1 if normalise else torch.ones_like(deviation_B1)
    advantage_BK = torch.where(flat_B1, 0.0, centred_BK / scale_B1)
    return advantage_BK.masked_fill(reward_BK.isnan(), float("nan"))


def advantages_of(groups: Sequence[EpisodeGroup], *, normalise: bool) -> list[list[float]]:
    """`group_advantages` of groups that need not have the same number of episodes: [groups][episodes]."""
    widest = max((len(group.episodes) for group in groups), default=0)
    if widest == 0:
        return [[] for _ in groups]
    reward_BK = torch.full((len(groups), widest), float("nan"), dtype=torch.float64)
    for row, group in enumerate(groups):
        reward_BK[row, : len(group.episodes)] = torch.tensor(group.rewards, dtype=torch.float64)
    advantage_BK = group_advantages(reward_BK, normalise=normalise)
    return [advantage_BK[row, : len(group.episodes)].tolist() for row, group in enumerate(groups)]
