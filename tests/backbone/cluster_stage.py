"""Recorded groups of every kind, and what the local trainer makes of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from trainer_helpers import episode, group, node

from astune.algorithm import GRPO, TokenWeights, advantages_of
from astune.backbone.cluster.rows import Row, quiet_row, rows_of
from astune.config.schema import LossConfig
from astune.schema import Episode, EpisodeGroup, MessageNode
from astune.trainer.loss import LossInputs, PolicyLoss
from astune.trainer.samples import WeightedTimeline, weighted

EOS = 0
LOSSES = {
    "policy alone": LossConfig(importance_cap=1.5),
    "with KL and entropy": LossConfig(importance_cap=1.5, kl_coef=0.3, entropy_coef=0.2),
}


@dataclass(frozen=True)
class Batch:
    """`quiet` groups have no variance; a `dropped` one could not be completed."""

    used: list[EpisodeGroup]
    quiet: list[EpisodeGroup]
    dropped: EpisodeGroup


def recorded() -> Batch:
    """Linear and branching episodes, several timelines, rewards per target, a group without variance, one dropped."""
    linear = [node(0, None, [5, 6]), node(1, 0, [7] * 4, sampled=4)]
    longer = [
        node(0, None, [5, 6]),
        node(1, 0, [8] * 9, sampled=9, logprobs=[-4.0 - place / 8 for place in range(9)]),
        node(2, 1, [9]),
        node(3, 2, [4, 4, 4], sampled=2),
    ]
    branching = [
        node(0, None, [5, 6, 7]),
        node(1, 0, [3] * 3, sampled=3),
        node(2, 0, [2] * 5, sampled=5),
        node(3, 1, [9]),
        node(4, 3, [1, 1], sampled=2, logprobs=[-2.0, -5.5]),
    ]
    talk = [
        node(0, None, [5]),
        node(1, 0, [6, 6], sampled=2, agent="wolf"),
        node(2, 0, [7, 7, 7], sampled=3, agent="farmer"),
    ]
    used = [
        group([_episode(linear, 1.0), _episode(longer, 0.0), _episode(branching, 0.25)]),
        group([_episode(branching, 1.0), _episode(linear, 0.0)]),
        group([_episode(talk, 1.0, wolf=1.0, farmer=0.0), _episode(talk, 0.0, wolf=0.0, farmer=1.0)]),
    ]
    dropped = group([_episode(linear, 1.0)])
    dropped.dropped = "group incomplete: the server was away"
    return Batch(used, [group([_episode(linear, 0.5), _episode(longer, 0.5)])], dropped)


def _episode(nodes: list[MessageNode], reward: float, **per_target: float) -> Episode:
    return episode(nodes, reward=reward, per_target=per_target) if per_target else episode(nodes, reward=reward)


def local_timelines(batch: Batch, scheme: TokenWeights) -> list[WeightedTimeline]:
    """What the local trainer trains."""
    share = len(batch.used) / (len(batch.used) + len(batch.quiet))
    advantages = advantages_of(GRPO(), batch.used)
    return weighted(batch.used, advantages, scheme, share=share, constant=GRPO.max_response_tokens)


def local_gradient(
    timeline: WeightedTimeline, said: dict[str, list[float]], trained: Tensor, loss: LossConfig
) -> tuple[Tensor, Tensor]:
    """Of the local loss, with respect to the policy's log-probability and entropy of each trained token.

    Args:
        said: what `said_of` gives.
        trained: where in the response.
    """
    policy_E, old_E, start_E, entropy_E = (torch.tensor(said[name])[trained] for name in SAID)
    inputs = LossInputs(
        torch.tensor(timeline.advantages),
        torch.full((len(timeline.positions),), timeline.token_weight),
        torch.tensor(timeline.engine_logprobs),
        torch.tensor(timeline.versions),
        torch.zeros(len(timeline.positions), dtype=torch.long),
        old_logprob_E=old_E,
        reference_logprob_E=start_E if loss.kl_coef else None,
    )
    value, _ = PolicyLoss(GRPO(), loss)(policy_E.requires_grad_(), entropy_E.requires_grad_(), inputs)
    of_logprob, of_entropy = torch.autograd.grad(value, (policy_E, entropy_E), materialize_grads=True)
    return of_logprob, of_entropy


SAID = ("policy", "old", "start", "entropy")
"""What models say of each token of a response: log-probabilities of three, and the first one's entropy."""


def said_of(row: Row, random: torch.Generator) -> dict[str, Any]:
    """The row, and what models say of it: ratios that are clipped and not, importance that is capped and not."""
    engine = torch.tensor(row.logprobs)

    def near(values: Tensor, by: float) -> Tensor:
        return values + torch.empty_like(values).uniform_(-by, by, generator=random)

    old = near(engine, 0.8)
    policy = near(old, 0.5)
    said = (policy, old, near(policy, 0.5), near(torch.full_like(engine, 2.0), 1.0))
    return asdict(row) | {name: values.tolist() for name, values in zip(SAID, said, strict=True)}


def taught_rows(batch: Batch, scheme: TokenWeights) -> list[tuple[str, Row]]:
    """What a worker makes of groups that teach something, each row with its group."""
    rows: list[tuple[str, Row]] = []
    algorithm = GRPO()
    algorithm.token_weights = scheme
    for number, one in enumerate(batch.used):
        [advantages] = advantages_of(algorithm, [one])
        rows += [(f"used{number}", row) for row in rows_of(one, advantages, algorithm)]
    return rows


def standing_rows(batch: Batch) -> list[tuple[str, Row]]:
    """What stands for groups that teach nothing, and for the one that was dropped."""
    quiet = [(f"quiet{number}", quiet_row(EOS, 0)) for number in range(len(batch.quiet))]
    return [*quiet, ("dropped", quiet_row(EOS, 0, dropped=True))]


def told_rows(batch: Batch, scheme: TokenWeights) -> list[tuple[str, Row]]:
    """All that a worker tells an engine of a batch."""
    return [*taught_rows(batch, scheme), *standing_rows(batch)]
