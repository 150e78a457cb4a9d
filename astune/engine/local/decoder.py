"""`decoder.c`, compiled where it runs: all layers of a Llama in one call, for tokens that attend one by one.

Of a decoding step of one row, starting eight operations a layer from Python took 2 of 13 ms. The numbers are those of
`CpuLlama.layer`, bit for bit: both run the same functions in the same order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for
from astune.engine.local._cpu_adapters import AdapterRows
from astune.engine.local._cpu_linear import Gate, Linear
from astune.engine.local.attention import Tokens
from astune.engine.local.products import Packed

if TYPE_CHECKING:
    from astune.engine.local._batch import PackedBatch

_SOURCE = Path(__file__).with_suffix(".c")


class _Step(ctypes.Structure):
    """`Step` of the source."""

    _fields_ = [
        *((name, c_int64) for name in ("layers", "width", "heads", "kv_heads", "dim", "inner_width")),
        *((name, c_int64) for name in ("policies", "rows", "capacity", "threads", "score_room")),
        *((name, c_float) for name in ("eps", "scale")),
        *((name, c_void_p) for name in ("cos", "sin", "positions", "slots", "lengths", "prefixes", "shared")),
        *((name, c_void_p) for name in ("scores", "policy_of_row", "quantized")),
    ]


class DecoderShape(NamedTuple):
    width: int
    heads: int
    kv_heads: int
    dim: int
    inner_width: int
    eps: float
    scale: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return self[:5]

    @property
    def numbers_of_a_row(self) -> int:
        """Intermediate numbers of a layer."""
        return self.width + 2 * (self.heads + self.kv_heads) * self.dim + self.inner_width


class DecoderLayer(NamedTuple):
    """A layer's weights; norms of queries and keys where it has them."""

    input_norm: Tensor
    head_norms: tuple[Tensor, Tensor] | None
    inner_norm: Tensor
    products: Sequence[Gate | Linear]
    """Queries, keys and values together; attention's output; gate and up together; down."""

    @property
    def packed(self) -> list[Packed]:
        """Products in the layout that the compiled function reads."""
        return [product for product in self.products if isinstance(product, Packed)]

    def entry(self) -> list[int]:
        """`Layer` of the source; keys and values are not known yet."""
        products = [number for product in self.packed for number in product.entry()]
        norms = addresses(self.input_norm, *(self.head_norms or (None, None)), self.inner_norm)
        return [*norms, *products, 0, 0]


class CompiledDecoder:
    """The layers of a model. Their tensors are kept, and may not be replaced."""

    def __init__(self, decode: Any, shape: DecoderShape, layers: Sequence[DecoderLayer], policies: int) -> None:
        self._decode = decode
        self._shape = shape
        self._layers = layers
        self._policies = policies
        self._ranks = max(product.ranks for layer in layers for product in layer.packed)
        self._quantized_row_bytes = max(product.quantized_row_bytes for layer in layers for product in layer.packed)
        self._table = torch.tensor([layer.entry() for layer in layers])

    @classmethod
    def of(cls, shape: DecoderShape, layers: Sequence[DecoderLayer], policies: int) -> CompiledDecoder | None:
        """None where layers have other products than ours, or nothing can be compiled.

        Args:
            policies: how many have adapters.
        """
        packed = all(len(layer.packed) == len(layer.products) for layer in layers)
        decode = _decode(layers[0].input_norm.dtype) if packed else None
        return None if decode is None else cls(decode, shape, layers, policies)

    def __call__(
        self,
        x_NW: Tensor,
        angles: tuple[Tensor, Tensor],
        batch: PackedBatch,
        attention: Tokens,
        rows: AdapterRows | None,
    ) -> Tensor:
        """Compute all layers in place of x; keys and values are stored in the batch's cache."""
        shape, cache, n = self._shape, batch.cache, len(x_NW)
        policy_of_row = rows.numbers if rows and self._ranks else None
        quantized = torch.empty(n * self._quantized_row_bytes, dtype=torch.uint8)
        step = _Step(
            len(self._layers),
            *shape.sizes,
            self._policies,
            n,
            cache.capacity,
            torch.get_num_threads(),
            attention.scores.shape[2],
            shape.eps,
            shape.scale,
            *addresses(*angles, batch.positions, *attention.places, attention.scores, policy_of_row, quantized),
        )
        self._table[:, -2:] = torch.tensor([addresses(*pair) for pair in zip(cache.keys, cache.values, strict=True)])
        room = x_NW.new_empty(n * (shape.numbers_of_a_row + self._policies * self._ranks))
        self._decode(ctypes.byref(step), *addresses(self._table, x_NW, room))
        return x_NW


@cache
def _decode(dtype: torch.dtype) -> Any:
    """The compiled function, which lets other threads run meanwhile; None where it cannot be compiled."""
    functions = compiled_for(dtype, _SOURCE, {"decode": [c_void_p] * 4}, doing="sampling")
    return None if functions is None else functions.decode
