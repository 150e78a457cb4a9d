"""Settings of prompt optimisation."""

from __future__ import annotations

from pydantic import Field

from astune.config.strict import StrictModel


class PromptSearchConfig(StrictModel):
    """Optimisation of a workflow's prompts by reflection, with frozen weights: `astune optimize-prompt`."""

    prompts: list[str] = Field(default_factory=list)
    """Names of `rollout.params` that hold prompts; empty uses every string that contains a space."""
    max_episodes: int = Field(default=400, ge=1)
    """Maximum episodes of the search, excluding the measurements before and after it."""
    validation_tasks: int = Field(default=24, ge=2)
    """Training tasks on which every promising prompt is compared; validation tasks are measured before and after
    only."""
