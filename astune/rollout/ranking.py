"""Ranking of a task's episodes by a judge that sees the whole group."""

from __future__ import annotations

from collections.abc import Sequence

from astune.rollout.verdict import ask_group_judge
from astune.schema import AstuneError, Episode, Reward
from astune.task_judge import GroupJudgeBase

UNRANKED = Reward(raw_reward=0.0, is_success=False)
"""The reward of an episode until its group is judged; known by identity."""


def is_unranked(episode: Episode) -> bool:
    return episode.reward is UNRANKED


async def rank(judge: GroupJudgeBase, episodes: Sequence[Episode], *, timeout_s: float) -> None:
    """Assign the group judge's rewards to the episodes of one task; if it fails, all of them end in error."""
    try:
        rewards = await ask_group_judge(judge, episodes, timeout_s=timeout_s)
    except AstuneError as failure:
        for episode in episodes:
            leave_unranked(episode, f"{failure.kind}: {failure}")
        return
    for episode, reward in zip(episodes, rewards, strict=True):
        episode.reward = reward
        episode.metrics |= reward.metrics
        if episode.status != "truncated":
            episode.status = "success" if reward.is_success else "failed"


def leave_unranked(episode: Episode, error: str) -> None:
    """End an episode without a reward."""
    episode.reward, episode.status, episode.error = None, "error", error
