"""Settings of the model that helps: judges ask it, and tasks are made with it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class HelperModelConfig(StrictModel):
    """A model beside the one that is trained, for judges and for making tasks."""

    base_url: str = ""
    """Any OpenAI-compatible endpoint, as https://host/v1; `local` runs `helper_model.model` in this process. Empty
    where nothing needs a helper model."""
    api_key_env: str = ""
    """The environment variable that holds the endpoint's key. The key itself goes nowhere else."""
    model: str = ""
    """The model's name at the endpoint, or as `model.path` names it where `base_url` is `local`; empty takes the first
    that the endpoint serves."""
    max_concurrency: int = Field(default=8, ge=1)
    """Questions at once; more wait for their turn."""
    budget_tokens: int | None = Field(default=None, ge=0)
    """Tokens of all questions and answers after which the run stops with an error; answers from the cache are free.
    Null sets no limit."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that one answer may take, without the wait for its turn."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 for the same answer to the same question; null leaves it to the endpoint. Where several answers to one question
    are wanted, it is 0.7 at least."""
    language: Literal["en", "zh"] = "en"
    """The language of the prompts that it is given."""
    prompts: Path | None = None
    """A folder whose NAME.txt files replace the prompts of astune/helper_model/prompts; null takes those."""
    cache: bool = True
    """Keep its answers on disk, in `~/.cache/astune` or `$ASTUNE_CACHE`, so that the same questions cost nothing the
    second time and are answered alike."""
