"""A judge's result for one episode."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

FULL_SCORE = 1.0 - 1e-9
"""Reward from which an episode counts as a success if nobody reports it: 1, except for rounding."""


class Reward(BaseModel):
    """Reward of an episode: one number, or one for each target, or one for each turn.

    `raw_reward` is used in reports, and for training if nothing finer is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    raw_reward: FiniteFloat
    """Reward of the episode."""
    is_success: bool
    """Whether the episode is a success."""
    per_target: dict[str, FiniteFloat] | None = None
    """Rewards by target tag; agents with other targets are trained on `raw_reward`."""
    per_turn: list[FiniteFloat] | None = None
    """Immediate rewards of the trained messages, in the order in which they were requested; each message is trained on
    the sum from it on."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Values to be recorded with the reward, for the log viewer."""
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Numbers to be averaged over episodes, like a workflow's metrics."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.per_target is not None and self.per_turn is not None:
            raise ValueError("a reward is given per target or per turn, not both")
        return self
