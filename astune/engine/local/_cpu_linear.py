"""Linear layers whose weights oneDNN has laid out for its own kernels: twice as fast on a CPU for few rows.

The one place that touches torch's private oneDNN operators. What follows a product (an activation, a
residual, a gate) is fused into it, and rounded once.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

_ROWS_HINT = 64
"""oneDNN may choose a layout for a number of rows; measured, 1 to 1024 give the same one."""


def takes_bfloat16() -> bool:
    """Whether oneDNN multiplies it here: on x86 where the CPU has at least AVX512. Elsewhere its operators raise."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def is_available(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, on the kind of CPU that they were measured on."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    built = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return x86 and built and (dtype != torch.bfloat16 or takes_bfloat16())


class PackedLinear:
    """y = x W^T + b for x [rows, in]; the weight is copied, later changes to the given tensor do not reach it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self._bias = bias
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        return self._unary(x, self._weight, self._bias, "none", [], "")

    def silu(self, x: Tensor) -> Tensor:
        return self._unary(x, self._weight, self._bias, "swish", [], "")

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, self._bias, "add")

    def mul(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, self._bias, "mul")
