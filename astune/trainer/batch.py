"""The batch of a step: which groups and messages are trained, with which advantages, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isnan, nan

from astune.algorithm import Algorithm, advantages_of, without_variance
from astune.config.samples import SampleRule
from astune.schema import Advantage, Episode, EpisodeGroup, TrainingBatch
from astune.schema.forest import is_trained
from astune.trainer.sample_rules import apply_rules

NO_VARIANCE = "group has no variance"
NO_VARIANCE_FOR_POLICY = "group has no variance for the policy"
NOTHING_LEFT = "trainer.samples leaves nothing of the group"
NOBODY_TRAINED = "no trained agent spoke in the group"
ALL_MASKED = "every sampled token of the group is masked"
FOUND_IN_BATCH = (NOTHING_LEFT, ALL_MASKED)
"""Reasons that `batch_of` finds, whose tokens have accounts of their own."""
PolicyOf = Callable[[str], str]
"""The policy that writes a target's messages, by name."""


def drop_without_variance(groups: Iterable[EpisodeGroup], algorithm: Algorithm) -> None:
    """Mark groups that nothing can be learnt from as dropped: no trained agent spoke, as in games of a league that end
    before the trained side's turn, or all advantages are zero."""
    finished = [group for group in groups if group.dropped is None]
    for group in finished:
        if not any(episode.trained_messages for episode in group.episodes):
            group.dropped = NOBODY_TRAINED
    for group in without_variance(algorithm, [group for group in finished if group.dropped is None]):
        group.dropped = NO_VARIANCE


def drop_untrained(groups: Iterable[EpisodeGroup], why: str) -> None:
    """Mark groups of a run that does not train as dropped."""
    for group in groups:
        group.dropped = group.dropped or why


def batch_of(
    step: int,
    groups: Sequence[EpisodeGroup],
    algorithm: Algorithm,
    rules: Sequence[SampleRule] = (),
    policy_of: PolicyOf | None = None,
    tasks_per_step: int | None = None,
) -> TrainingBatch:
    """The groups of a step that are trained, with their advantages.

    A group of which nothing is left is dropped, and its tokens are in the accounts of what left them out.

    Args:
        rules: those of `trainer.samples`.
        policy_of: of a run of several policies. Messages of a policy whose own advantages in a group are all zero are
            left out, as the group would be were the policy trained alone.
        tasks_per_step: the number of groups of a step; what dynamic sampling replaced is not among the flat ones.
    """
    used = [group for group in groups if group.dropped is None]
    rows = advantages_of(algorithm, used)
    quiet = _quiet_policies(algorithm, used, rows, policy_of) if policy_of else [set[str]() for _ in used]
    flat = [group for group in groups if group.dropped == NO_VARIANCE]
    if tasks_per_step is not None:
        flat = flat[: max(0, tasks_per_step - len(used))]
    flat = [_ruled(group, rules) for group in flat]
    batch = TrainingBatch(step, [], [], flat=[group for group in flat if trains(group)])
    for group, advantages, silenced in zip(used, rows, quiet, strict=True):
        ruled, left_out = apply_rules(rules, group, advantages) if rules else (advantages, Counter[str]())
        batch.left_out += left_out
        if policy_of and silenced:
            pairs = zip(group.episodes, ruled, strict=True)
            ruled = [_without(episode, own, silenced, policy_of, batch.left_out) for episode, own in pairs]
        if trains(group):
            batch.groups.append(group)
            batch.advantages.append(ruled)
        else:
            group.dropped = NOTHING_LEFT if left_out else ALL_MASKED
            if silenced:
                batch.flat.append(group)
    return batch


def trains(group: EpisodeGroup) -> bool:
    return any(episode.n_trained > 0 for episode in group.episodes)


def _ruled(group: EpisodeGroup, rules: Sequence[SampleRule]) -> EpisodeGroup:
    """A copy of a group of which the rules leave out what they would of one that varies."""
    if not rules:
        return group
    episodes = [replace(episode, left_out=dict(episode.left_out)) for episode in group.episodes]
    copy = EpisodeGroup(group.task, episodes, dropped=group.dropped)
    apply_rules(rules, copy, [0.0 if episode.reward is not None else nan for episode in episodes])
    return copy


def _quiet_policies(
    algorithm: Algorithm, groups: Sequence[EpisodeGroup], rows: Sequence[Sequence[Advantage]], policy_of: PolicyOf
) -> list[set[str]]:
    """The policies that learn nothing from each group, though others do: see `without_variance`.

    wolf 1 1, farmer 1 0   ->   the wolf's
    """
    advantages = [_by_policy(*pair, policy_of) for pair in zip(groups, rows, strict=True)]
    quiet = [
        {policy for policy, values in own.items() if all(value == 0 or isnan(value) for value in values)}
        for own in advantages
    ]
    if algorithm.baseline == "batch":
        learning = {policy for own, silent in zip(advantages, quiet, strict=True) for policy in own.keys() - silent}
        return [silent - learning for silent in quiet]
    return quiet


def _by_policy(group: EpisodeGroup, row: Sequence[Advantage], policy_of: PolicyOf) -> dict[str, list[float]]:
    """The advantages of each policy's messages, where messages have their own."""
    found: dict[str, list[float]] = {}
    for episode, advantage in zip(group.episodes, row, strict=True):
        if isinstance(advantage, dict):
            for node in episode.trained_messages:
                found.setdefault(policy_of(episode.target_of(node.agent)), []).append(advantage[node.node_id])
    return found


def _without(
    episode: Episode, advantage: Advantage, policies: set[str], policy_of: PolicyOf, accounts: Counter[str]
) -> Advantage:
    """Leave out what these policies wrote, and return the advantages without it."""
    if not isinstance(advantage, dict):
        return advantage
    kept = dict(advantage)
    for node in episode.trained_messages:
        if (
            is_trained(node, episode.constrained_tokens)
            and node.node_id not in episode.left_out
            and policy_of(episode.target_of(node.agent)) in policies
        ):
            episode.leave_out(node.node_id, NO_VARIANCE_FOR_POLICY)
            accounts[NO_VARIANCE_FOR_POLICY] += node.n_sampled
            kept[node.node_id] = nan
    return kept
