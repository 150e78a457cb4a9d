"""The model that is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class LoraConfig(StrictModel):
    """Low-rank adapters in place of training every weight."""

    rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters; 0 trains every weight. Small models learn better in full, large ones fit only so."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters' contribution: alpha / rank."""


class ModelConfig(StrictModel):
    """The model that is trained."""

    path: str = "builtin:smollm2-135m"
    """A local folder, a Hugging Face hub id, a .gguf file, or `builtin:smollm2-135m`, which needs no hub."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where the model lives; `auto` takes the first of cuda, mps and cpu that is there."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """What matrix products use; master weights stay float32. `auto` is bfloat16 where that is fast."""
    lora: LoraConfig = LoraConfig()
