"""Settings of the trained model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class LoraConfig(StrictModel):
    """Low-rank adapters in place of training every weight."""

    rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters; 0 trains all weights. Small models learn better with full training; large ones fit
    only with LoRA."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters' contribution: alpha / rank."""


class ModelConfig(StrictModel):
    """The trained model."""

    path: str = "builtin:smollm2-135m"
    """A local folder, a Hugging Face hub id, a .gguf file, or `builtin:smollm2-135m`, which needs no hub."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Device of the model; `auto` uses the first available of cuda, mps and cpu."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Data type of matrix products; master weights stay float32. `auto` is bfloat16 where that is fast."""
    lora: LoraConfig = LoraConfig()
