"""A judge's result for one episode."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

FULL_SCORE = 1.0 - 1e-9
"""A reward of 1 but for rounding. What nobody calls a success or a failure is a success from here on."""


class Reward(BaseModel):
    """What an episode is trained on: one number, or one for each target, or one for each turn.

    `raw_reward` is what reports show and count, and what is trained where nothing finer is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    raw_reward: FiniteFloat
    is_success: bool
    per_target: dict[str, FiniteFloat] | None = None
    """By the agents' target tag; a target that is not named is trained on `raw_reward`."""
    per_turn: list[FiniteFloat] | None = None
    """What each message that is trained earned at once, in the order of recording; a message is trained on what was
    earned from it on."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    """Numbers to be averaged over episodes, as a workflow's metrics are."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.per_target is not None and self.per_turn is not None:
            raise ValueError("a reward is given per target or per turn, not both")
        return self
