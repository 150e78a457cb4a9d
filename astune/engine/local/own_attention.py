"""The attention of a transformers model's own forward pass, which engine and trainer are measured against."""

from __future__ import annotations

from typing import Any


def without_gaps(model: Any) -> Any:
    """Return the model, attending eagerly where transformers' fused kernels would leave a part of its attention out.

    `sdpa`, the default, silently ignores a cap of the scores, as Gemma 2 has it.
    """
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    return model
