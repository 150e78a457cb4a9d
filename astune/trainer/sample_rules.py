"""Rules on samples: which sampled messages of a group are trained, and with what weight.

A sample is one message that would be trained. Advantages exist before any rule: a baseline counts every episode, also
those of which nothing is trained. What is left out has the name of its rule in the token accounting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from random import Random

from astune.config.samples import SampleRule
from astune.schema import Advantage, Constraint, Episode, EpisodeGroup, MessageNode
from astune.schema.forest import is_trained

NAN = float("nan")


@dataclass(slots=True)
class Sample:
    """A message. `call` counts the messages of its agent in its episode from 0, in the order in which they were
    requested; `n_calls` are all of them."""

    episode: Episode
    node: MessageNode
    call: int
    n_calls: int
    advantage: float
    left_out: bool = False

    @property
    def target(self) -> str:
        return self.episode.target_of(self.node.agent)


Rule = Callable[[Sequence[Sample]], None]
"""Changes advantages of the samples of one group, or leaves some out."""


def drop(samples: Sequence[Sample]) -> None:
    """Leave all of them out."""
    for sample in samples:
        sample.left_out = True


def cap(samples: Sequence[Sample], *, messages: int) -> None:
    """Keep at most `messages` of each agent in each episode, drawn by the episode's seed.

    messages=2:   Ann wrote 5, Bob wrote 1   ->   2 of Ann's and 1 of Bob's
    """
    by_agent: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_agent[sample.episode.episode_id, sample.node.agent].append(sample)
    for (_, agent), written in by_agent.items():
        if len(written) > messages:
            drop(Random(f"{written[0].episode.seed}/{agent}").sample(written, len(written) - messages))


def reweight(samples: Sequence[Sample], *, weight: float) -> None:
    """Multiply their advantages, and with them their part of the policy's gradient.

    weight=0.5:   advantages 1 -1   ->   0.5 -0.5
    """
    for sample in samples:
        sample.advantage *= weight


def deduplicate(samples: Sequence[Sample]) -> None:
    """Keep the first of those that one target wrote after reading the same, with the mean of their advantages.

    Under another grammar the same tokens have other probabilities, and are no copy.

    "Ann" three times with advantages 1 1 -1, "Bob" once with -1   ->   "Ann" 0.33, "Bob" -1
    """
    copies: defaultdict[tuple[str, tuple[int, ...], int, Constraint | None], list[Sample]] = defaultdict(list)
    for sample in samples:
        node = sample.node
        path_ids = tuple(sample.episode.forest.path_ids(node.node_id))
        copies[sample.target, path_ids, node.n_sampled, node.constraint].append(sample)
    for first, *others in copies.values():
        first.advantage = (first.advantage + sum(one.advantage for one in others)) / (1 + len(others))
        drop(others)


def is_meant(rule: SampleRule, sample: Sample) -> bool:
    """Return whether a rule of the configuration is about a sample."""
    n_tokens = sample.node.n_sampled
    return (
        (not rule.agent or sample.node.agent in rule.agent)
        and (not rule.target or sample.target in rule.target)
        and (not rule.status or sample.episode.status in rule.status)
        and (rule.calls is None or sample.call in range(sample.n_calls)[slice(*rule.calls)])
        and (rule.min_tokens is None or n_tokens >= rule.min_tokens)
        and (rule.max_tokens is None or n_tokens <= rule.max_tokens)
    )


def apply_rules(
    rules: Sequence[SampleRule], group: EpisodeGroup, advantages: Sequence[Advantage]
) -> tuple[list[Advantage], Counter[str]]:
    """Apply rules to a group, whose episodes are marked with what is left out.

    Returns:
        the advantages, by message where a rule changed something of an episode and NaN for what is left out; and the
        tokens that are left out, by account.
    """
    samples = [one for episode, own in zip(group.episodes, advantages, strict=True) for one in _samples(episode, own)]
    accounts: Counter[str] = Counter()
    for number, rule in enumerate(rules, 1):
        there = [one for one in samples if not one.left_out]
        _function(rule)([one for one in there if is_meant(rule, one)])
        cause = f"trainer.samples {number}: {rule.do}"
        for one in there:
            if one.left_out:
                one.episode.leave_out(one.node.node_id, cause)
                accounts[cause] += one.node.n_sampled
    by_episode: defaultdict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        by_episode[one.episode.episode_id].append(one)
    changed = [
        _after(own, by_episode[episode.episode_id], episode)
        for episode, own in zip(group.episodes, advantages, strict=True)
    ]
    return changed, accounts


def _function(rule: SampleRule) -> Rule:
    if rule.do == "cap":
        return partial(cap, messages=rule.messages or 1)
    if rule.do == "reweight":
        return partial(reweight, weight=rule.weight or 1.0)
    return {"drop": drop, "deduplicate": deduplicate}[rule.do]


def _samples(episode: Episode, advantage: Advantage) -> list[Sample]:
    """Every message of an episode with a reward that some timeline trains."""
    if not isinstance(advantage, dict) and isnan(advantage):
        return []
    n_calls: Counter[str] = Counter()
    call: dict[int, int] = {}
    for node in episode.forest.answers():
        call[node.node_id] = n_calls[node.agent]
        n_calls[node.agent] += 1
    return [
        Sample(
            episode,
            node,
            call[node.node_id],
            n_calls[node.agent],
            advantage[node.node_id] if isinstance(advantage, dict) else advantage,
        )
        for node in episode.forest.nodes
        if is_trained(node, episode.constrained_tokens)
    ]


def _after(before: Advantage, samples: Sequence[Sample], episode: Episode) -> Advantage:
    """The advantage of an episode after all rules: as it was where none of them changed any of it."""
    own = {
        node.node_id: before[node.node_id] if isinstance(before, dict) else before for node in episode.trained_messages
    }
    new = own | {one.node.node_id: NAN if one.left_out else one.advantage for one in samples}
    return before if new == own or not samples else new
