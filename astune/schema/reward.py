"""What a judge says about one episode."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class Reward(BaseModel):
    """A finite reward. `per_target`, one for each trained agent, is refused until it is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    raw_reward: FiniteFloat
    is_success: bool
    per_target: dict[str, FiniteFloat] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
