"""Linear layers whose weights are laid out for the CPU's kernels: twice as fast as torch's for few rows.

Where our own products (`_products.py`) are not available, oneDNN's are. This is the one place that touches torch's
private oneDNN operators. What follows a product (an activation, a residual, a gate) is fused into it.
"""

from __future__ import annotations

import platform
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local import _products
from astune.engine.local._products import GatedProduct, PackedProduct

_ROWS_HINT = 64
"""oneDNN may choose a layout for a number of rows; measured, 1 to 1024 give the same one."""


class Linear(Protocol):
    """y = x W^T + b for x [rows, in]; holds a copy of the weight."""

    is_row_invariant: bool
    """Whether a row's numbers are the same beside any number of rows."""

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def add(self, x: Tensor, other: Tensor, /) -> Tensor:
        """y + other"""
        ...


class Gate(Protocol):
    """silu(x G^T) * (x U^T)."""

    is_row_invariant: bool

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def add(self, x: Tensor, other: Tensor, /) -> Tensor:
        """silu(x G^T + a) * (x U^T + b), with other = [a, b]: [rows, 2 * width]"""
        ...


def takes_bfloat16() -> bool:
    """Whether oneDNN multiplies it here: on x86 where the CPU has at least AVX512. Elsewhere its operators raise."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def is_available(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, on the kind of CPU that they were measured on."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    built = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return x86 and built and (dtype != torch.bfloat16 or takes_bfloat16())


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    own = _products.are_available(weight.dtype, weight.shape[1])
    return PackedProduct(weight, bias) if own else OneDnnLinear(weight, bias)


def gate(gate: Tensor, up: Tensor, biases: tuple[Tensor, Tensor] | None = None) -> Gate:
    own = _products.are_available(gate.dtype, gate.shape[1])
    return GatedProduct(gate, up, biases) if own else OneDnnGate(gate, up, biases)


class OneDnnLinear:
    """oneDNN's layout and kernels."""

    is_row_invariant = False

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


class OneDnnGate:
    """Two of oneDNN's layers, the activation and the product fused into them."""

    is_row_invariant = False

    def __init__(self, gate: Tensor, up: Tensor, biases: tuple[Tensor, Tensor] | None = None) -> None:
        of_gate, of_up = biases or (None, None)
        self._gate, self._up = OneDnnLinear(gate, of_gate), OneDnnLinear(up, of_up)

    def __call__(self, x: Tensor) -> Tensor:
        return self._up.mul(x, self._gate.silu(x))

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        to_gate, to_up = other.chunk(2, dim=1)
        return F.silu(self._gate.add(x, to_gate)).mul_(self._up.add(x, to_up))
