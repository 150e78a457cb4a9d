"""Settings of the search for better prompts."""

from __future__ import annotations

from pydantic import Field

from astune.config.strict import StrictModel


class PromptSearchConfig(StrictModel):
    """Improving a workflow's prompts by reflection, with the weights as they are: `astune optimize-prompt`."""

    prompts: list[str] = Field(default_factory=list)
    """Names of `rollout.params` that hold the prompts; empty takes all of them that are texts with a space in them."""
    max_episodes: int = Field(default=400, ge=1)
    """Episodes after which nothing more is tried; those of the measurements before and after are not counted."""
    validation_tasks: int = Field(default=24, ge=2)
    """Training tasks that every promising prompt is compared on; held-out tasks are measured before and after only."""
