"""Rejudging and re-merging recorded episodes without a model, to see the effect of a changed judge or policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from astune.config.schema import AstuneConfig
from astune.context_tracker import merged_again
from astune.renderers import Comparison, Renderer
from astune.rollout.verdict import ask_judge, targets_in
from astune.schema import AstuneError, Episode
from astune.task_judge import JudgeBase


@dataclass(frozen=True, slots=True)
class Again:
    """An episode with its new reward; `kept` is why the recorded reward stays if it could not be rejudged."""

    episode: Episode
    kept: str | None = None


async def again(episode: Episode, renderer: Renderer, judge: JudgeBase | None, config: AstuneConfig) -> Again:
    """Re-merge and rejudge a recorded episode.

    Its environment no longer exists, so a judge that needs it cannot judge; the recorded reward is then kept, as is a
    reward of the workflow itself.

    Raises:
        WorkflowError: a recorded conversation cannot be rendered any more.
    """
    policy = config.rollout.timelines
    forest = merged_again(episode.forest, renderer, Comparison(policy.compare_level, policy.ignore_tools))
    merged = replace(episode, forest=forest, constrained_tokens=config.constrained_tokens)
    if judge is None:
        return Again(merged, "the workflow gave the reward itself")
    try:
        merged.reward = await ask_judge(
            judge,
            episode.task,
            environment=None,
            forest=forest,
            targets=targets_in(merged, (episode.reward and episode.reward.per_target) or ()),
            registered=episode.judge_inputs,
            timeout_s=config.rollout.call_timeout_s,
        )
    except AstuneError as failure:
        return Again(merged, f"{failure.kind}: {failure}")
    if episode.status != "truncated":
        merged.status = "success" if merged.reward.is_success else "failed"
    return Again(merged)
