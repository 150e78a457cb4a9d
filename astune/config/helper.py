"""Settings of the helper model that judges ask and that generates tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class HelperModelConfig(StrictModel):
    """A second model beside the trained one, for judges and task generation."""

    base_url: str = ""
    """Any OpenAI-compatible endpoint, such as https://host/v1; `local` runs `helper_model.model` in this process. Leave
    it empty if nothing needs a helper model."""
    api_key_env: str = ""
    """Environment variable that holds the endpoint's API key. The key itself is never stored or logged."""
    model: str = ""
    """Model name at the endpoint, or a path as in `model.path` if `base_url` is `local`; empty uses the first model
    that the endpoint serves."""
    max_concurrency: int = Field(default=8, ge=1)
    """Maximum concurrent requests; further ones wait."""
    budget_tokens: int | None = Field(default=None, ge=0)
    """Total tokens of all requests and answers after which the run stops with an error; cached answers are free. Null
    sets no limit."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one answer in seconds, excluding the time in the queue."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 gives the same answer to the same question; null leaves it to the endpoint. If several answers to one question
    are needed, at least 0.7 is used."""
    language: Literal["en", "zh"] = "en"
    """Language of the helper model's prompts."""
    prompts: Path | None = None
    """A folder whose NAME.txt files replace the prompts of astune/helper_model/prompts; null uses those."""
    cache: bool = True
    """Cache answers on disk, in `~/.cache/astune` or `$ASTUNE_CACHE`, so that repeated requests are free and get the
    same answer."""
