"""`_products.c`, compiled where it runs: linear layers in bfloat16 on a CPU that multiplies it (AVX512-BF16, AMX).

For the few rows of a decoding step they take half to nine tenths of oneDNN's time. A row's numbers do not depend
on how many rows are multiplied together, which oneDNN does not promise.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, PYFUNCTYPE, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.compiled import compiled, processor
from astune.schema import EngineError

_SOURCE = Path(__file__).with_suffix(".c")
_COLUMNS = 32
"""`COLUMNS` of the source."""
_HALF = _COLUMNS // 2
_LONG = 1 << 27
"""Multiplications that take some tenths of a millisecond on two cores."""


class _Functions(NamedTuple):
    pack: Any
    product: Any
    """Keeps the interpreter: what takes less than a millisecond should not wait for other threads to hand it back."""
    long_product: Any
    """Lets other threads run meanwhile."""


@cache
def _functions() -> _Functions | None:
    if "avx512_bf16" not in processor().split():
        return None
    library = compiled(_SOURCE, doing="sampling")
    if library is None:
        return None
    packing = CFUNCTYPE(None, *[c_void_p] * 2, *[c_int64] * 3)
    holding, releasing = (kind(None, *[c_void_p] * 5, *[c_int64] * 5) for kind in (PYFUNCTYPE, CFUNCTYPE))
    return _Functions(packing(("pack", library)), holding(("product", library)), releasing(("product", library)))


def are_available(dtype: torch.dtype, inputs: int) -> bool:
    """Whether layers of so many inputs can be multiplied here."""
    return dtype == torch.bfloat16 and inputs % 2 == 0 and _functions() is not None


class PackedProduct:
    """y = x W^T + b for x [rows, in]; the weight is copied, later changes to the given tensor do not reach it."""

    is_row_invariant = True

    def __init__(self, weight_EI: Tensor, bias_E: Tensor | None = None) -> None:
        self._outputs, self._inputs = weight_EI.shape
        functions = _functions()
        if functions is None:
            raise EngineError("this CPU has no products of ours", hint="oneDNN's layers serve everywhere")
        self._functions = functions
        panels, weight_EI = -(-self._outputs // _COLUMNS), weight_EI.contiguous()
        self._weight = weight_EI.new_empty(panels * _COLUMNS, self._inputs)
        addresses = weight_EI.data_ptr(), self._weight.data_ptr()
        functions.pack(*addresses, self._outputs, self._inputs // 2, torch.get_num_threads())
        missing = panels * _COLUMNS - self._outputs
        self._bias = None if bias_E is None else F.pad(bias_E.float(), (0, missing)).contiguous()

    def __call__(self, x_NI: Tensor) -> Tensor:
        return self._times(x_NI, self._outputs)

    def add(self, x_NI: Tensor, other_NE: Tensor) -> Tensor:
        return self._times(x_NI, self._outputs, other_NE.contiguous())

    def _times(self, x_NI: Tensor, width: int, other_NE: Tensor | None = None, *, gated: bool = False) -> Tensor:
        x_NI = x_NI.contiguous()
        out = x_NI.new_empty(len(x_NI), width)
        is_long = len(x_NI) * self._weight.numel() > _LONG
        product = self._functions.long_product if is_long else self._functions.product
        product(
            x_NI.data_ptr(),
            self._weight.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            None if other_NE is None else other_NE.data_ptr(),
            out.data_ptr(),
            len(x_NI),
            self._inputs,
            width,
            gated,
            torch.get_num_threads(),
        )
        return out


class GatedProduct(PackedProduct):
    """silu(x G^T) * (x U^T), rounded once: a panel has the same columns of both."""

    def __init__(self, gate_EI: Tensor, up_EI: Tensor, biases: tuple[Tensor, Tensor] | None = None) -> None:
        self._width = len(gate_EI)
        bias = None if biases is None else _interleaved(*(each[:, None] for each in biases))[:, 0]
        super().__init__(_interleaved(gate_EI, up_EI), bias)

    def __call__(self, x_NI: Tensor) -> Tensor:
        return self._times(x_NI, self._width, gated=True)

    def add(self, x_NI: Tensor, other_NE: Tensor) -> Tensor:
        """silu(x G^T + the first half of other) * (x U^T + its second half)."""
        return self._times(x_NI, self._width, other_NE.contiguous(), gated=True)


def _interleaved(gate_EI: Tensor, up_EI: Tensor) -> Tensor:
    """Half a panel of rows of each by turns; both are filled up with zeros."""
    halves = [F.pad(each, (0, 0, 0, -len(each) % _HALF)).unflatten(0, (-1, _HALF)) for each in (gate_EI, up_EI)]
    return torch.stack(halves, dim=1).flatten(0, 2)
