"""`tree_attention.c`, compiled where it runs: attention of sequences that share beginnings, on a CPU.

In float32, or bfloat16 where the processor multiplies that. Matrix products of torch write every score to memory and
read it some twelve times, forward and backward; here scores stay in the cache. Training attends with it, and the engine
to new prompts; elsewhere both have matrix products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for, processor

_SOURCE = Path(__file__).with_suffix(".c")
_DIM = 32
"""Head dimensions are multiples of it."""
_QUERIES = 64
"""Queries of a tile, about."""
Range = tuple[int, int]
"""[first, end) of a layout of tokens."""
_SIGNATURES = {
    "attend": [c_void_p] * 8 + [c_int64] * 8 + [c_float],
    "attend_backward": [c_void_p] * 12 + [c_int64] * 7 + [c_float],
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """N tiles (first token, end, segment) of at most `tokens` tokens of one segment each.

    Segment s sees the ranges [from, to) of the layout `range_R2[first_range[s]:first_range[s + 1]]`, each token as
    far as they do not lie behind it.
    """

    tile_N3: Tensor
    first_range: Tensor
    range_R2: Tensor
    tokens: int

    @classmethod
    def of(cls, segments: Iterable[Range], seen: Sequence[Sequence[Range]], group: int) -> Tiles:
        """Cut segments into tiles of about 64 queries, of which each token has `group`; at least one token.

        Args:
            segments: their own tokens.
            seen: the ranges that each sees, in ascending order, its own tokens among them.
        """
        tokens = max(1, _QUERIES // group)
        tiles = [
            (first, min(first + tokens, end), index)
            for index, (start, end) in enumerate(segments)
            for first in range(start, end, tokens)
        ]
        return cls(
            tile_N3=torch.tensor(tiles),
            first_range=torch.tensor([0, *accumulate(map(len, seen))]),
            range_R2=torch.tensor([each for ranges in seen for each in ranges]),
            tokens=tokens,
        )


def kernels_for(query: Tensor, key: Tensor, value: Tensor) -> TreeKernels | None:
    """The compiled functions, where they serve tensors of this kind and can be had."""
    fits = query.shape[-1] == value.shape[-1] and query.shape[-1] % _DIM == 0
    alike = all(tensor.dtype == query.dtype and tensor.device.type == "cpu" for tensor in (query, key, value))
    return _kernels(query.dtype) if fits and alike else None


@cache
def _kernels(dtype: torch.dtype) -> TreeKernels | None:
    if dtype == torch.bfloat16 and "avx512_bf16" not in processor():
        return None
    functions = compiled_for(dtype, _SOURCE, _SIGNATURES, doing="training and sampling")
    return None if functions is None else TreeKernels(functions)


class TreeKernels:
    """query [Q, H, G, D] of the last Q of T tokens, key and value [T, H, D], contiguous; the source describes it."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def attend(self, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, scale: float) -> tuple[Tensor, Tensor]:
        """-> [Q, H, G, D], and the logarithms to the base 2 of the softmax's sums [H, Q, G]."""
        queries, heads, group, dim = query.shape
        out, log2_sums = torch.empty_like(query), query.new_empty(heads, queries, group, dtype=torch.float32)
        self._functions.attend(
            *addresses(query, key, value, out, log2_sums),
            *addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, len(key), len(key) - queries, group, dim),
            *(tiles.tokens * group, torch.get_num_threads()),
            scale,
        )
        return out, log2_sums

    def attend_backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        log2_sums: Tensor,
        grad_out: Tensor,
        tiles: Tiles,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value, where every token has queries."""
        tokens, heads, group, dim = query.shape
        grad_out = grad_out.contiguous()
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        self._functions.attend_backward(
            *addresses(query, key, value, out, grad_out, log2_sums, *grads),
            *addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, tokens, group, dim),
            *(tiles.tokens * group, torch.get_num_threads()),
            scale,
        )
        return grads
