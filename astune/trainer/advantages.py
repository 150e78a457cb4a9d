"""Advantages: how much better an episode did than its own group, as a whole or in a part that has a reward of its own.

A baseline counts episodes, never timelines or tokens (law 5). Nothing here knows what an episode said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isnan

import torch
from torch import Tensor

from astune.schema import Advantage, Episode, EpisodeGroup, Reward, TrainerError

NAN = float("nan")
FLAT = 1e-5
"""Rewards of a group count as equal within this part of their scale: their largest size, or 1 where all are smaller.

Rounding to float32 moves a reward by 6e-8 of itself, a judge's noise by perhaps 1e-6; divided by a standard deviation
as small, either would weigh as much as a solved task. Deliberate differences are larger."""


def group_advantages(reward_BK: Tensor, *, normalise: bool) -> Tensor:
    """Advantage of each episode against its own group.

        rewards 1 0 0 0, normalise=False   ->  0.75 -0.25 -0.25 -0.25
        rewards 1 0 0 0, normalise=True    ->  1.73 -0.58 -0.58 -0.58   (divided by 0.433)
        rewards 1 1 1 1                    ->  0 0 0 0
        rewards 0.3 0.300001 0.3 0.3       ->  0 0 0 0      (equal within `FLAT`)
        rewards 1 0 NaN                    ->  the first two of a group of two, and NaN

    Args:
        reward_BK: rewards, one row a task, one column an episode; NaN where an episode has none.
        normalise: divide by the group's standard deviation (GRPO); False leaves the difference, as Dr. GRPO does.

    Returns:
        advantages [B, K] in float64; 0 for a group whose rewards are equal within `FLAT`, NaN where the reward was.

    Source: Shao et al. 2024, arXiv 2402.03300, eq. 3; Liu et al. 2025, arXiv 2503.20783 for normalise=False.
    """
    reward_BK = reward_BK.double()
    centred_BK = reward_BK - reward_BK.nanmean(dim=1, keepdim=True)
    deviation_B1 = centred_BK.square().nanmean(dim=1, keepdim=True).sqrt()
    flat_B1 = _spread(reward_BK) <= FLAT * reward_BK.nan_to_num().abs().amax(dim=1, keepdim=True).clamp(min=1)
    scale_B1 = deviation_B1 if normalise else torch.ones_like(deviation_B1)
    advantage_BK = torch.where(flat_B1, 0.0, centred_BK / scale_B1)
    return advantage_BK.masked_fill(reward_BK.isnan(), NAN)


def advantages_of(groups: Sequence[EpisodeGroup], *, normalise: bool) -> list[list[Advantage]]:
    """The advantages of groups, which need not have the same number of episodes: [groups][episodes].

    Raises:
        TrainerError: a group has rewards per target and rewards per turn.
    """
    return [_of_group(group, normalise=normalise) for group in groups]


def teaches_nothing(advantages: Sequence[Advantage]) -> bool:
    """Whether a group's advantages are all zero, or of episodes without a reward: there is nothing to learn from it."""
    values = [value for one in advantages for value in (one.values() if isinstance(one, dict) else (one,))]
    return all(value == 0 or isnan(value) for value in values)


def _of_group(group: EpisodeGroup, *, normalise: bool) -> list[Advantage]:
    rewards = [episode.reward for episode in group.episodes if episode.reward is not None]
    per_target = any(reward.per_target is not None for reward in rewards)
    per_turn = any(reward.per_turn is not None for reward in rewards)
    if per_target and per_turn:
        raise TrainerError(
            f"the episodes of task {group.task.task_id} were rewarded per target and per turn",
            hint="let the judge give all episodes of a task the same kind of reward",
        )
    if per_target:
        return _by_target(group.episodes, normalise=normalise)
    if per_turn:
        return _by_turn(group.episodes, normalise=normalise)
    return [*_advantages([group.rewards], normalise=normalise)[0]]


def _by_target(episodes: Sequence[Episode], *, normalise: bool) -> list[Advantage]:
    """Each target against the episodes of the group in which it said something.

    wolf     1   0   -  1      ->  0.33 -0.67  -   0.33      (the third episode had no wolf)
    farmer   0   1   0  1      -> -0.5   0.5  -0.5 0.5
    """
    tags_K = [{episode.target_of(node.agent) for node in episode.trained_messages} for episode in episodes]
    targets = sorted(set().union(*tags_K))
    reward_XK = [
        [
            _reward_of(target, episode.reward) if target in tags else NAN
            for episode, tags in zip(episodes, tags_K, strict=True)
        ]
        for target in targets
    ]
    advantage_XK = dict(zip(targets, _advantages(reward_XK, normalise=normalise), strict=True))
    return [
        {node.node_id: advantage_XK[episode.target_of(node.agent)][column] for node in episode.trained_messages}
        if episode.reward is not None
        else NAN
        for column, episode in enumerate(episodes)
    ]


def _by_turn(episodes: Sequence[Episode], *, normalise: bool) -> list[Advantage]:
    """What an episode earned from a turn on, against what the group's episodes did from that turn on.

        earned        0 0 1    and   0 1             an episode that has ended earns nothing more
        from turn on  1 1 1    and   1 1 (0)
        advantage     0 0 0.5  and   0 0

    A baseline may depend on the turn and on other episodes, not on what was done in that turn. Were ended episodes
    left out of it, the last turns of the longest episode would have none and not be trained.

    Source: Sutton and Barto 2018, "Reinforcement Learning", section 13.4, for the reward from now on against a
    baseline; Greensmith et al. 2004, JMLR 5, for baselines by time step. The process supervision of Shao et al. 2024,
    section 4.1.3, takes its mean over all steps of a group, so that long episodes weigh more in it (law 5).
    """
    earned_K = [_earned_from_each_turn(episode) for episode in episodes]
    n_turns = max(map(len, earned_K))
    return_XK = [
        [
            NAN if episode.reward is None else earned[turn] if turn < len(earned) else 0.0
            for episode, earned in zip(episodes, earned_K, strict=True)
        ]
        for turn in range(n_turns)
    ]
    advantage_XK = _advantages(return_XK, normalise=normalise)
    return [
        {node.node_id: advantage_XK[turn][column] for turn, node in enumerate(episode.trained_messages)}
        if episode.reward is not None
        else NAN
        for column, episode in enumerate(episodes)
    ]


def _spread(reward_BK: Tensor) -> Tensor:
    """The largest reward of each row less its smallest, [B, 1]."""
    missing_BK = reward_BK.isnan()
    largest_B1 = reward_BK.masked_fill(missing_BK, -torch.inf).amax(dim=1, keepdim=True)
    return largest_B1 - reward_BK.masked_fill(missing_BK, torch.inf).amin(dim=1, keepdim=True)


def _reward_of(target: str, reward: Reward | None) -> float:
    if reward is None:
        return NAN
    return (reward.per_target or {}).get(target, reward.raw_reward)


def _earned_from_each_turn(episode: Episode) -> list[float]:
    """Sums of the rewards of a turn and all later ones; one number for the episode was earned at its end."""
    n_turns = len(episode.trained_messages)
    if episode.reward is None or episode.reward.per_turn is None:
        return [episode.raw_reward] * n_turns
    return [*accumulate(reversed(episode.reward.per_turn))][::-1]


def _advantages(reward_XK: Sequence[Sequence[float]], *, normalise: bool) -> list[list[float]]:
    """A row for each part of the episodes that has a reward of its own."""
    if not reward_XK or not reward_XK[0]:
        return [[] for _ in reward_XK]
    return group_advantages(torch.tensor(reward_XK, dtype=torch.float64), normalise=normalise).tolist()
