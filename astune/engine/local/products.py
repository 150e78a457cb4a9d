"""`products.c`, compiled where it runs: linear layers of bfloat16 (AVX512-BF16, AMX) and of float32 (AVX2, AVX512).

Weights lie in 8 bits where that is asked for, which takes AVX512-VNNI beside bfloat16, and those of float32 in bfloat16
where that changes none of them. For the few rows of a decoding step products in bfloat16 take half to nine tenths of
oneDNN's time, in float32 half to seven tenths. A row's numbers do not depend on how many rows are multiplied together,
which oneDNN does not promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for, processor
from astune.engine.local._cpu_adapters import AdapterRows, LowRank
from astune.schema import EngineError

_SOURCE = Path(__file__).with_suffix(".c")
_REQUIRED = {torch.bfloat16: {"avx512_bf16", "avx512_vnni"}, torch.float32: {"avx2", "fma"}}
"""Instructions that a processor must have."""
_GROUP = 32
"""`GROUP` of the source."""
_LONG = 1 << 27
"""Multiplications that take some tenths of a millisecond on two cores."""


class _Form(IntEnum):
    """Layout of a weight."""

    WHOLE = 0
    HALVES = 1
    """bfloat16, which holds each of its numbers."""
    INT8 = 2


class _Functions(NamedTuple):
    columns: int
    """Outputs of a panel, `COLUMNS` of the source."""
    int8_group_bytes: int
    """Bytes of `_GROUP` inputs of one output."""
    row_group_bytes: int
    """Bytes of `_GROUP` inputs of a quantized row."""
    pack: Any
    pack_halves: Any
    """For float32; returns 0 where a number would be rounded."""
    pack_int8: Any
    product: Any
    """Keeps the interpreter: what takes less than a millisecond should not wait for other threads to hand it back."""
    long_product: Any
    """Lets other threads run meanwhile."""


@cache
def _functions(dtype: torch.dtype) -> _Functions | None:
    required = _REQUIRED.get(dtype)
    if required is None or not required <= set(processor().split()):
        return None
    library = compiled_for(dtype, _SOURCE, {}, doing="sampling")
    if library is None:
        return None
    pack, pack_halves = (CFUNCTYPE(result, *[c_void_p] * 2, *[c_int64] * 3) for result in (None, c_int64))
    holding, releasing = (kind(None, *[c_void_p] * 9, *[c_int64] * 8) for kind in (PYFUNCTYPE, CFUNCTYPE))
    columns, int8_group_bytes, row_group_bytes = (
        c_int64.in_dll(library, name).value for name in ("panel_columns", "int8_group_bytes", "row_group_bytes")
    )
    return _Functions(
        columns,
        int8_group_bytes,
        row_group_bytes,
        pack(("pack", library)),
        pack_halves(("pack_halves", library)) if dtype == torch.float32 else None,
        pack(("pack_int8", library)),
        holding(("product", library)),
        releasing(("product", library)),
    )


def are_available(dtype: torch.dtype, inputs: int) -> bool:
    """Whether layers of so many inputs can be multiplied here."""
    return (dtype == torch.float32 or inputs % 2 == 0) and _functions(dtype) is not None


def _require(dtype: torch.dtype) -> _Functions:
    functions = _functions(dtype)
    if functions is None:
        raise EngineError("this CPU has no products of ours", hint="oneDNN's layers serve everywhere")
    return functions


class _Adapters(NamedTuple):
    """Policies' adapters of a product, laid out like its weight."""

    table: Tensor
    """The addresses of both factors, one row a policy."""
    ranks: int
    kept: list[Tensor]


class Packed:
    """A layer for x [rows, in]; the weight is copied, later changes to the given tensor do not reach it.

    Args:
        int8: keep the weight in 8 bits, where `in` is a multiple of the inputs that have a scale.
    """

    is_row_invariant = True

    def __init__(self, weight_EI: Tensor, bias_E: Tensor | None = None, *, int8: bool = False) -> None:
        self._outputs, self._inputs = weight_EI.shape
        self._dtype = weight_EI.dtype
        self._functions = _require(self._dtype)
        self._form, self._weight = self._laid_out(weight_EI.contiguous(), int8=int8 and self._inputs % _GROUP == 0)
        missing = self._padded(self._outputs) - self._outputs
        self._bias = None if bias_E is None else F.pad(bias_E.float(), (0, missing)).contiguous()
        self._adapters: _Adapters | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the largest adapter, padded to whole panels; 0 without adapters."""
        return self._adapters.ranks if self._adapters else 0

    @property
    def quantized_row_bytes(self) -> int:
        """Bytes of a row in 8 bits, for a weight in 8 bits; else 0."""
        return self._inputs // _GROUP * self._functions.row_group_bytes if self._form == _Form.INT8 else 0

    def entry(self) -> list[int]:
        """`Linear` of `decoder.c`, until new adapters are loaded."""
        table = self._adapters.table if self._adapters else None
        return [*addresses(self._weight, self._bias, table), self.ranks, self._form]

    def _laid_out(self, weight_EI: Tensor, *, int8: bool) -> tuple[_Form, Tensor]:
        outputs, sizes = self._padded(self._outputs), (self._outputs, self._inputs, torch.get_num_threads())
        if int8:
            group_bytes = self._functions.int8_group_bytes
            packed = torch.empty(outputs, self._inputs // _GROUP * group_bytes, dtype=torch.uint8)
            self._functions.pack_int8(*addresses(weight_EI, packed), *sizes)
            return _Form.INT8, packed
        if self._functions.pack_halves:
            packed = torch.empty(outputs, self._inputs, dtype=torch.bfloat16)
            if self._functions.pack_halves(*addresses(weight_EI, packed), *sizes):
                return _Form.HALVES, packed
        return _Form.WHOLE, self._packed(weight_EI)

    def _packed(self, weight_EI: Tensor) -> Tensor:
        weight_EI = weight_EI.contiguous()
        outputs, inputs = weight_EI.shape
        packed = weight_EI.new_empty(self._padded(outputs), inputs)
        words = inputs * weight_EI.itemsize // 4
        self._functions.pack(*addresses(weight_EI, packed), outputs, words, torch.get_num_threads())
        return packed

    def _padded(self, outputs: int) -> int:
        """Round up to whole panels."""
        return -(-outputs // self._functions.columns) * self._functions.columns

    def load_adapters(self, adapters: Sequence[Sequence[LowRank]]) -> None:
        """Lay out a policy's factors as one pair, those of the layers that are computed together beside each other."""
        ranks = max((sum(len(part.down_RI) for part in adapter) for adapter in adapters), default=0)
        if not ranks:
            self._adapters = None
            return
        ranks = self._padded(ranks)
        kept = [self._packed(factor) for adapter in adapters for factor in self._joined(adapter, ranks)]
        self._adapters = _Adapters(torch.tensor(addresses(*kept)).reshape(-1, 2), ranks, kept)

    def _joined(self, adapter: Sequence[LowRank], ranks: int) -> tuple[Tensor, Tensor]:
        down_RI = torch.zeros(ranks, self._inputs, dtype=self._dtype)
        up_ER = torch.zeros(self._outputs, ranks, dtype=self._dtype)
        start = 0
        for down, up, first in adapter:
            down_RI[start : start + len(down)] = down
            up_ER[first : first + len(up), start : start + len(down)] = up
            start += len(down)
        return down_RI, up_ER

    def _times(
        self,
        x_NI: Tensor,
        width: int,
        rows: AdapterRows | None,
        other_NE: Tensor | None = None,
        *,
        gated: bool = False,
    ) -> Tensor:
        x_NI = x_NI.contiguous()
        out = x_NI.new_empty(len(x_NI), width)
        is_long = len(x_NI) * self._outputs * self._inputs > _LONG
        product = self._functions.long_product if is_long else self._functions.product
        numbers, table, inner_PNR, policies, ranks = None, None, None, 0, 0
        if rows and self._adapters:
            numbers, table, ranks = rows.numbers, self._adapters.table, self._adapters.ranks
            policies = len(table)
            inner_PNR = x_NI.new_empty(policies, len(x_NI), ranks)
        quantized = torch.empty(len(x_NI) * self.quantized_row_bytes, dtype=torch.uint8)
        product(
            *addresses(x_NI, self._weight, self._bias, other_NE, out, numbers, table, inner_PNR, quantized),
            *(policies, ranks, len(x_NI), self._inputs, width, gated, self._form, torch.get_num_threads()),
        )
        return out


class PackedProduct(Packed):
    """y = x W^T + b."""

    def __call__(self, x_NI: Tensor, rows: AdapterRows | None = None) -> Tensor:
        return self._times(x_NI, self._outputs, rows)

    def add(self, x_NI: Tensor, other_NE: Tensor, rows: AdapterRows | None = None) -> Tensor:
        return self._times(x_NI, self._outputs, rows, other_NE.contiguous())


class GatedProduct(Packed):
    """silu(x G^T) * (x U^T), rounded once: a panel has the same columns of both."""

    def __init__(
        self, gate_EI: Tensor, up_EI: Tensor, biases: tuple[Tensor, Tensor] | None = None, *, int8: bool = False
    ) -> None:
        self._width = len(gate_EI)
        self._half = _require(gate_EI.dtype).columns // 2
        bias = None if biases is None else self._interleaved(*(each[:, None] for each in biases))[:, 0]
        super().__init__(self._interleaved(gate_EI, up_EI), bias, int8=int8)

    def _joined(self, adapter: Sequence[LowRank], ranks: int) -> tuple[Tensor, Tensor]:
        down_RI, up_ER = super()._joined(adapter, ranks)
        gate, up = up_ER[: 2 * self._width].chunk(2)
        return down_RI, self._interleaved(gate, up)

    def _interleaved(self, gate_EI: Tensor, up_EI: Tensor) -> Tensor:
        """Half a panel of rows of each by turns; both are filled up with zeros."""
        half = self._half
        halves = [F.pad(each, (0, 0, 0, -len(each) % half)).unflatten(0, (-1, half)) for each in (gate_EI, up_EI)]
        return torch.stack(halves, dim=1).flatten(0, 2)

    def __call__(self, x_NI: Tensor, rows: AdapterRows | None = None) -> Tensor:
        return self._times(x_NI, self._width, rows, gated=True)
