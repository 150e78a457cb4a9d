"""Settings of the league: training groups in which one side is played by an earlier version of itself.

Versions are kept of every policy that trains, every few steps; the newest few are the pool. The configuration, the step
and the task decide who is replaced by what: all episodes of a group meet the same opponent, a resumed run meets the
same opponents, and no state is shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from astune.config.strict import StrictModel
from astune.schema import stable_seed

if TYPE_CHECKING:
    from astune.config.policies import PolicyConfig


class LeagueConfig(StrictModel):
    """Self-play against earlier versions of the same run (docs/en/multiagent_workflow.md)."""

    share: float = Field(default=0.0, ge=0, le=1)
    """The part of the training groups in which one of the policies that train, drawn by the task, is played by an
    earlier version of itself; where one policy trains, it is one of its targets. 0 is no league."""
    every: int = Field(default=5, ge=1)
    """Steps between two versions that are kept; the first is the one that the run begins with."""
    size: int = Field(default=4, ge=1)
    """Number of recent versions kept of each policy; each is an adapter in the memory of trainer and engine."""


def pool_of(league: LeagueConfig, step: int) -> list[int]:
    """The steps after which the versions were kept that play in step `step`, the newest first.

    every 5, size 3:   step 1 -> 0     step 6 -> 5 0     step 23 -> 20 15 10
    """
    newest = (step - 1) // league.every * league.every
    return [at for at in range(newest, newest - league.every * league.size, -league.every) if at >= 0]


def slot_of(league: LeagueConfig, kept_at: int) -> int:
    """The place of a version in the pool; a newer one takes the place of the oldest."""
    return kept_at // league.every % league.size


class PastPlayer(NamedTuple):
    """The policy that an earlier version plays in a group, or one of its targets where `target` is not None."""

    policy: str
    target: str | None
    kept_at: int
    """The step after which the version was kept."""
    generation: int
    """1 for the newest of the pool."""
    adapter: str
    """The version's name in the engine."""

    def plays(self, policy: str, target: str) -> bool:
        return policy == self.policy and self.target in (None, target)


def adapter_in(policy: str, slot: int) -> str:
    """The name in the engine of a version in the pool; no policy has an @ in its name."""
    return f"{policy}@{slot}"


def policy_in(adapter: str) -> str:
    """The policy that a name in the engine is a version of, or is."""
    return adapter.partition("@")[0]


def past_player(
    league: LeagueConfig, models: Mapping[str, PolicyConfig], *, seed: int, step: int, task_id: str
) -> PastPlayer | None:
    """The earlier version that plays in a training group; None where only the present ones play."""
    rng = Random(stable_seed(seed, "league", step, task_id))
    if step < 1 or rng.random() >= league.share:
        return None
    trained = [name for name, policy in models.items() if policy.train]
    policy = rng.choice(trained)
    target = rng.choice(models[policy].targets) if len(trained) == 1 else None
    pool = pool_of(league, step)
    kept_at = rng.choice(pool)
    return PastPlayer(policy, target, kept_at, pool.index(kept_at) + 1, adapter_in(policy, slot_of(league, kept_at)))


def require_opponents(league: LeagueConfig, models: Mapping[str, PolicyConfig]) -> None:
    """Raise ValueError where a league has nobody who could play against an earlier version."""
    trained = [policy for policy in models.values() if policy.train]
    whole = next((name for name, policy in models.items() if policy.trains_all), None)
    if league.share > 0 and whole is not None:
        raise ValueError(
            f"trainer.league.share is above 0, and astune.models.{whole} trains every weight: a league keeps earlier "
            f"versions as adapters. Set astune.models.{whole}.lora.rank, for instance to 16, or share to 0"
        )
    if league.share > 0 and not (len(trained) > 1 or any(len(policy.targets) > 1 for policy in trained)):
        raise ValueError(
            "trainer.league.share is above 0, and nobody could play against an earlier version: train two policies in "
            "astune.models, or one with two targets"
        )
