"""Weighted timelines: a training batch as the loss sees it, however it is computed.

The loss of a batch is a weighted sum over trained tokens (law 4). This file alone decides the weights;
packing and micro-batching below it may reorder and share, and change no weight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from astune.algorithm import TokenWeights
from astune.schema import (
    Advantage,
    Constraint,
    Episode,
    EpisodeGroup,
    Timeline,
    TrainerError,
    TrainingBatch,
    trained_and_masked,
)


@dataclass(frozen=True, slots=True)
class ConstrainedRun:
    """Tokens `[start, end)` of a timeline: one trained completion that was sampled under a grammar."""

    start: int
    end: int
    constraint: Constraint


@dataclass(slots=True)
class WeightedTimeline:
    """A token sequence, which of its tokens carry loss, and the weight of each in the batch.

    `positions` are indices into `token_ids`, ascending and above 0; `engine_logprobs` runs parallel to it.
    """

    token_ids: list[int]
    positions: list[int]
    engine_logprobs: list[float]
    versions: list[int]
    """The weights version that sampled each trained token."""
    advantages: list[float]
    token_weight: float
    group: int
    constrained: list[ConstrainedRun] = field(default_factory=list[ConstrainedRun])
    episode_id: str = ""
    messages: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The messages whose tokens are trained, in the order of `positions`: a node and the number of its tokens."""

    @classmethod
    def unweighted(
        cls,
        prompt_ids: list[int],
        sampled_ids: list[int],
        engine_logprobs: list[float],
        *,
        version: int = 0,
        constraint: Constraint | None = None,
    ) -> WeightedTimeline:
        """Return one answer to a prompt, trained with a weight of 0: for what a model computes of it."""
        start, n_sampled = len(prompt_ids), len(sampled_ids)
        end = start + n_sampled
        return cls(
            token_ids=[*prompt_ids, *sampled_ids],
            positions=list(range(start, end)),
            engine_logprobs=engine_logprobs,
            versions=[version] * n_sampled,
            advantages=[0.0] * n_sampled,
            token_weight=0.0,
            group=0,
            constrained=[ConstrainedRun(start, end, constraint)] if constraint is not None else [],
        )

    @property
    def input_ids(self) -> list[int]:
        """Return the tokens that a forward pass reads: everything before the last predicted token."""
        return self.token_ids[: self.positions[-1]]


@dataclass(slots=True)
class TokenAccounts:
    """Token accounting of a batch: each is trained once, or masked with a reason."""

    trained: int = 0
    masked: Counter[str] = field(default_factory=Counter[str])

    @property
    def masked_fraction(self) -> float:
        return self.masked.total() / (self.trained + self.masked.total())


def weighted(
    groups: Sequence[EpisodeGroup],
    advantages: Sequence[Sequence[Advantage]],
    scheme: TokenWeights,
    *,
    share: float = 1.0,
    constant: int = 1,
) -> list[WeightedTimeline]:
    """Flatten groups into timelines whose token weights sum to 1, unless the scheme is "constant" or "group".

        a batch of 2 groups of 2 episodes, token counts (10, 30) and (20, 40), one timeline each, weights of a token
        episode    1/2 of a group, 1/2 of an episode: 1/40, 1/120, 1/80, 1/160
        timeline   1/4 of a timeline: the same here; an episode of two timelines would count twice
        token      1/100, all of them
        constant   1/2 of a group, 1/2 of an episode, divided by `constant`, 50: 1/200, all of them
        group      1/2 of a group, all of them: the loss of a group is the sum of its tokens'

    An episode without a reward (NaN advantage) has no weight and is left out of its group's count.

    Args:
        share: the part of the update's groups that `groups` are; advantages are multiplied by it. Groups without
            variance are not computed, but their advantages of zero belong into the mean: otherwise the last group that
            varies would move the weights as far as all of them did. Entropy and KL terms have no zeros there.
        constant: what the scheme "constant" divides an episode's tokens by, in place of their number.
    """
    timelines: list[WeightedTimeline] = []
    members = [
        [
            (episode, advantage, trained)
            for episode, advantage in zip(group.episodes, row, strict=True)
            if _has_reward(advantage) and (trained := [t for t in episode.timelines if t.n_trained])
        ]
        for group, row in zip(groups, advantages, strict=True)
    ]
    n_groups = sum(bool(episodes) for episodes in members)
    n_timelines = sum(len(trained) for episodes in members for _, _, trained in episodes)
    n_tokens = sum(t.n_trained for episodes in members for _, _, trained in episodes for t in trained)
    for group, episodes in enumerate(members):
        for episode, advantage, trained in episodes:
            in_episode = sum(timeline.n_trained for timeline in trained)
            for timeline in trained:
                parts = {
                    "episode": n_groups * len(episodes) * in_episode,
                    "timeline": n_timelines * timeline.n_trained,
                    "token": n_tokens,
                    "constant": n_groups * len(episodes) * constant,
                    "group": n_groups,
                }
                timelines.append(_weighted(timeline, episode, advantage, share, 1 / parts[scheme], group))
    return timelines


def account(batch: TrainingBatch) -> TokenAccounts:
    """Each sampled token of the batch's episodes in exactly one account (law 3)."""
    accounts = TokenAccounts()
    for group, row in zip(batch.groups, batch.advantages, strict=True):
        for episode, advantage in zip(group.episodes, row, strict=True):
            trained, masked = trained_and_masked(episode.timelines)
            if _has_reward(advantage):
                accounts.trained += trained
                accounts.masked += masked
            else:
                accounts.masked["episode without a reward"] += trained + masked.total()
    return accounts


def _has_reward(advantage: Advantage) -> bool:
    return isinstance(advantage, dict) or not math.isnan(advantage)


def _weighted(
    timeline: Timeline, episode: Episode, advantage: Advantage, share: float, weight: float, group: int
) -> WeightedTimeline:
    positions: list[int] = []
    versions: list[int] = []
    advantages: list[float] = []
    constrained: list[ConstrainedRun] = []
    messages: list[tuple[int, int]] = []
    for span in timeline.spans:
        if not span.sampled or span.mask_reason is not None:
            continue
        if span.weights_version is None:
            raise TrainerError(
                f"episode {episode.episode_id} has sampled tokens without a weights version",
                hint="the engine has to return the version of the weights that it sampled with",
            )
        n_tokens = span.end - span.start
        of_span = advantage[span.node_id] if isinstance(advantage, dict) else advantage
        positions += range(span.start, span.end)
        versions += [span.weights_version] * n_tokens
        advantages += [of_span * share] * n_tokens
        messages.append((span.node_id, n_tokens))
        if span.constraint is not None:
            constrained.append(ConstrainedRun(span.start, span.end, span.constraint))
    logprobs = [timeline.logprobs[index] for index in positions]
    if positions[0] == 0:
        raise TrainerError(
            f"episode {episode.episode_id} was sampled without a prompt: its first token has nothing to follow from",
            hint="every prompt needs at least one token; see the workflow's first message and the chat template",
        )
    if not all(map(math.isfinite, [*logprobs, *advantages])):
        raise TrainerError(
            f"episode {episode.episode_id} has a log-probability or an advantage that is not finite",
            hint="the engine recorded it so: check the model's weights and its dtype (model.dtype: float32), "
            "or the judge's reward",
        )
    return WeightedTimeline(
        timeline.token_ids,
        positions,
        logprobs,
        versions,
        advantages,
        weight,
        group,
        constrained,
        episode.episode_id,
        messages,
    )
