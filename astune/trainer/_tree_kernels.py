"""`_tree_kernels.c`, compiled where it runs: tree attention on a CPU, in float32, or bfloat16 where it multiplies that.

Matrix products of torch write every score to memory and read it some twelve times, forward and backward; here scores
stay in the cache, and keys are read where they lie. Elsewhere the batches of `attention_plan.py` do the same.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for, processor
from astune.trainer.attention_plan import AttentionPlan

_SOURCE = Path(__file__).with_suffix(".c")
_DIM = 32
"""Head dimensions are multiples of it."""
_ROWS = 64
"""Queries taken together."""
_SIGNATURES = {
    "attend": [c_void_p] * 8 + [c_int64] * 7 + [c_float],
    "attend_backward": [c_void_p] * 12 + [c_int64] * 7 + [c_float],
}


def kernels_for(query: Tensor, key: Tensor, value: Tensor) -> TreeKernels | None:
    """The compiled functions, where they serve tensors of this kind and can be had."""
    fits = query.shape[-1] == value.shape[-1] and query.shape[-1] % _DIM == 0
    alike = all(tensor.dtype == query.dtype and tensor.device.type == "cpu" for tensor in (query, key, value))
    return _kernels(query.dtype) if fits and alike else None


@cache
def _kernels(dtype: torch.dtype) -> TreeKernels | None:
    if dtype == torch.bfloat16 and "avx512_bf16" not in processor():
        return None
    functions = compiled_for(dtype, _SOURCE, _SIGNATURES, doing="training")
    return None if functions is None else TreeKernels(functions)


class TreeKernels:
    """query [T, H, G, D], key and value [T, H, D], all contiguous; see the source for what is computed."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float
    ) -> tuple[Tensor, Tensor]:
        """-> [T, H, G, D], and the logarithms to the base 2 of the softmax's sums [H, T, G]."""
        tokens, heads, group, dim = query.shape
        tiles = plan.tiles(group, _ROWS)
        out, log2_sums = torch.empty_like(query), query.new_empty(heads, tokens, group, dtype=torch.float32)
        self._functions.attend(
            *addresses(query, key, value, out, log2_sums),
            *addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, tokens, group, dim),
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
        plan: AttentionPlan,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of query, key and value."""
        tokens, heads, group, dim = query.shape
        grad_out = grad_out.contiguous()
        tiles = plan.tiles(group, _ROWS)
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        self._functions.attend_backward(
            *addresses(query, key, value, out, grad_out, log2_sums, *grads),
            *addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, tokens, group, dim),
            *(tiles.tokens * group, torch.get_num_threads()),
            scale,
        )
        return grads
