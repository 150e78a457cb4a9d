"""Tree attention on a GPU by torch's FlexAttention: one compiled kernel a layer and direction, whatever the tree.

The dense batches of `attention_plan.py` start some twenty kernels each, and a micro-batch has dozens of batches. It is
not run on a GPU yet: what the mask lets through is tested on a CPU, where torch computes it without a kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from astune.trainer.attention_plan import BLOCK, plan_attention
from astune.trainer.trie import build_tree

_log = logging.getLogger(__name__)

Attend = Callable[..., Tensor]
"""`flex_attention`: query [1, heads, T, D], key and value [1, key heads, T, D] -> [1, heads, T, D]."""

_TOLERANCE = 0.03
"""Relative L2 error of the trial; bfloat16 rounds by less than 0.01, and a wrong neighbour changes a row by more."""


def flex_for(query: Tensor, key: Tensor) -> Attend | None:
    """The compiled function, where it serves tensors of this kind: a single block has nothing to skip, and would be
    compiled apart."""
    if query.device.type != "cuda" or query.shape[2] <= BLOCK:
        return None
    return _tried(query.device, query.dtype, query.shape[-1], query.shape[1], key.shape[1])


@cache
def _tried(device: torch.device, dtype: torch.dtype, dim: int, heads: int, key_heads: int) -> Attend | None:
    """Compile it for every length, and compare it with plain attention, forward and backward, on a small tree.

    It is called as a model's layers call it, with tokens first in memory and a scale: torch compiles any other call
    apart, and after eight of these it computes all scores at once.
    """
    attend = cast(Attend, torch.compile(flex_attention, dynamic=True))
    tree = build_tree([[*range(500)], [*range(300), *range(600, 800)]])
    mask = plan_attention(tree, device).block_mask
    generator = torch.Generator().manual_seed(0)
    *inputs, grad = (
        torch.randn(1, len(tree), n, dim, generator=generator).to(device, dtype).transpose(1, 2)
        for n in (heads, key_heads, key_heads, heads)
    )

    def computed(attend: Attend, dtype: torch.dtype) -> Tensor:
        """The output and the gradients of all inputs, one after another."""
        leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in inputs]
        out = attend(*leaves, block_mask=mask, scale=dim**-0.5, enable_gqa=heads != key_heads)
        gradients = torch.autograd.grad(out, leaves, grad.to(dtype))
        return torch.cat([tensor.detach().float().flatten() for tensor in (out, *gradients)])

    try:
        with torch.enable_grad():
            expected = computed(_plain, torch.float32)
            error = float((computed(attend, dtype) - expected).norm() / expected.norm())
        if not error < _TOLERANCE:
            raise RuntimeError(f"its relative error is {error:.2g}")
    except Exception as cause:  # whatever this build of torch, its compiler and the driver cannot do together
        _log.warning(
            "attention on this GPU is slower than it could be: FlexAttention failed: %s", str(cause).split("\n")[0]
        )
        return None
    return attend


def _plain(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> Tensor:
    token = torch.arange(query.shape[2], device=query.device)
    seen = block_mask.mask_mod(token, token, token[:, None], token[None])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
