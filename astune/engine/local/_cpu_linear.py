"""Linear layers whose weights are laid out for the CPU's kernels: twice as fast as torch's for few rows.

Where our own products (`products.py`) are not available, oneDNN's are. This is the one place that touches torch's
private oneDNN operators. What follows a product (an activation, a residual, a gate) is fused into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.compiled import is_x86
from astune.engine.local import products
from astune.engine.local._cpu_adapters import AdapterRows, LowRank, SeparateAdapters
from astune.engine.local.products import GatedProduct, PackedProduct

_ROWS_HINT = 64
"""oneDNN may choose a layout for a number of rows; measured, 1 to 1024 give the same one."""


class Layer(Protocol):
    """Products of x [rows, in] with weights of which it holds copies."""

    is_row_invariant: bool
    """Whether a row's numbers are the same beside any number of rows."""

    def load_adapters(self, adapters: Sequence[Sequence[LowRank]], /) -> None:
        """Copy each policy's additions in place of those before; a policy may have none here."""
        ...

    def __call__(self, x: Tensor, rows: AdapterRows | None = None, /) -> Tensor:
        """Multiply, and add to each row what its policy's adapter adds."""
        ...


class Gate(Layer, Protocol):
    """silu(x G^T) * (x U^T); adapters add to the outputs of [G, U] before the activation."""


class Linear(Layer, Protocol):
    """y = x W^T + b."""

    def add(self, x: Tensor, other: Tensor, rows: AdapterRows | None = None, /) -> Tensor:
        """y + other"""
        ...


def takes_bfloat16() -> bool:
    """Whether oneDNN multiplies it here: on x86 where the CPU has at least AVX512. Elsewhere its operators raise."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def is_available(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the operators, on the kind of CPU that they were measured on."""
    built = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_x86() and built and (dtype != torch.bfloat16 or takes_bfloat16())


def linear(weight: Tensor, bias: Tensor | None = None, *, int8: bool = False) -> Linear:
    own = products.are_available(weight.dtype, weight.shape[1])
    return PackedProduct(weight, bias, int8=int8) if own else OneDnnLinear(weight, bias)


def gate(gate: Tensor, up: Tensor, biases: tuple[Tensor, Tensor] | None = None, *, int8: bool = False) -> Gate:
    own = products.are_available(gate.dtype, gate.shape[1])
    return GatedProduct(gate, up, biases, int8=int8) if own else OneDnnGate(gate, up, biases)


class _OneDnn:
    """A layer with adapters that are added to what it computes."""

    is_row_invariant = False

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._adapters: SeparateAdapters | None = None

    def load_adapters(self, adapters: Sequence[Sequence[LowRank]]) -> None:
        self._adapters = SeparateAdapters(adapters, self._dtype)

    def _added(self, x: Tensor, y: Tensor, rows: AdapterRows | None) -> Tensor:
        """y, with adapters' products added in place."""
        if rows and self._adapters:
            self._adapters.add(x, y, rows)
        return y


class OneDnnLinear(_OneDnn):
    """oneDNN's layout and kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight.dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self._bias = bias
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        return self._added(x, self._unary(x, self._weight, self._bias, "none", [], ""), rows)

    def silu(self, x: Tensor) -> Tensor:
        return self._unary(x, self._weight, self._bias, "swish", [], "")

    def add(self, x: Tensor, other: Tensor, rows: AdapterRows | None = None) -> Tensor:
        return self._added(x, self._binary(x, other, self._weight, self._bias, "add"), rows)

    def mul(self, x: Tensor, other: Tensor) -> Tensor:
        return self._binary(x, other, self._weight, self._bias, "mul")


class OneDnnGate(_OneDnn):
    """Two of oneDNN's layers, the activation and the product fused into them."""

    def __init__(self, gate: Tensor, up: Tensor, biases: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__(gate.dtype)
        of_gate, of_up = biases or (None, None)
        self._gate, self._up, self._width = OneDnnLinear(gate, of_gate), OneDnnLinear(up, of_up), len(gate)

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        if not (rows and self._adapters):
            return self._up.mul(x, self._gate.silu(x))
        to_gate, to_up = self._added(x, x.new_zeros(len(x), 2 * self._width), rows).chunk(2, dim=1)
        return F.silu(self._gate.add(x, to_gate)).mul_(self._up.add(x, to_up))
