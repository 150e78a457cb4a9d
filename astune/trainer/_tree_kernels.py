"""`_tree_kernels.c`, compiled where it runs: tree attention in bfloat16 on a CPU that multiplies it (AVX512-BF16).

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

from astune.engine.compiled import compiled, processor
from astune.trainer.attention_plan import AttentionPlan

_SOURCE = Path(__file__).with_suffix(".c")
_DIM = 64
"""Head dimensions are multiples of it."""
_SIGNATURES = {
    "attend": [c_void_p] * 8 + [c_int64] * 8 + [c_float],
    "attend_backward": [c_void_p] * 12 + [c_int64] * 7 + [c_float],
}


def kernels_for(query: Tensor, value: Tensor) -> TreeKernels | None:
    """The compiled functions, where they serve tensors of this kind and can be had."""
    fits = query.shape[-1] == value.shape[-1] and query.shape[-1] % _DIM == 0
    return _kernels() if fits and query.device.type == "cpu" and query.dtype == torch.bfloat16 else None


@cache
def _kernels() -> TreeKernels | None:
    if "avx512_bf16" not in processor():
        return None
    functions = compiled(_SOURCE, doing="training")
    return None if functions is None else TreeKernels(functions)


class TreeKernels:
    """query [H, T, G, D], key and value [H, T, D], all contiguous; see the source for what is computed."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        for name, arguments in _SIGNATURES.items():
            getattr(functions, name).argtypes = arguments
            getattr(functions, name).restype = None
        self._attend = functions.attend
        self._attend_backward = functions.attend_backward

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float
    ) -> tuple[Tensor, Tensor]:
        """-> [H, T, G, D], and the logarithms to the base 2 of the softmax's sums [H, T, G]."""
        heads, tokens, group, dim = query.shape
        tiles = plan.tiles(group, FORWARD_ROWS)
        out, log2_sums = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
        self._attend(
            *_addresses(query, key, value, out, log2_sums),
            *_addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, tokens, group, dim),
            *(tiles.tokens * group, tiles.width, torch.get_num_threads()),
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
        heads, tokens, group, dim = query.shape
        grad_out = grad_out.contiguous()
        tiles = plan.tiles(group, BACKWARD_ROWS)
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        self._attend_backward(
            *_addresses(query, key, value, out, grad_out, log2_sums, *grads),
            *_addresses(tiles.tile_N3, tiles.first_range, tiles.range_R2),
            *(len(tiles.tile_N3), heads, tokens, group, dim),
            *(tiles.tokens * group, torch.get_num_threads()),
            scale,
        )
        return grads


FORWARD_ROWS, BACKWARD_ROWS = 24, 48
"""Queries taken together: whole rows of 24 queries' scores, and parts of 48 queries', stay in a core's cache."""


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
