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
from torch.nn.attention.flex_attention import flex_attention

from astune.trainer.attention_plan import plan_attention
from astune.trainer.trie import build_tree

_log = logging.getLogger(__name__)

Attend = Callable[..., Tensor]
"""`flex_attention`: query [1, heads, T, D], key and value [1, key heads, T, D] -> [1, heads, T, D]."""


def flex_for(query: Tensor, key: Tensor) -> Attend | None:
    """The compiled function, where it serves tensors of this kind."""
    if query.device.type != "cuda":
        return None
    return _tried(query.device, query.dtype, query.shape[-1], query.shape[1], key.shape[1])


@cache
def _tried(device: torch.device, dtype: torch.dtype, dim: int, heads: int, key_heads: int) -> Attend | None:
    """Compile it for every length, and try it forward and backward on a small tree."""
    attend = cast(Attend, torch.compile(flex_attention, dynamic=True))
    tree = build_tree([[*range(200)], [*range(100), *range(300, 400)]])
    query, key = (
        torch.zeros(1, n, len(tree), dim, dtype=dtype, device=device).requires_grad_() for n in (heads, key_heads)
    )
    mask = plan_attention(tree, device).block_mask
    try:
        with torch.enable_grad():
            attend(query, key, key, block_mask=mask, enable_gqa=heads != key_heads).sum().backward()
    except Exception as cause:  # whatever this build of torch, its compiler and the driver cannot do together
        _log.warning(
            "attention on this GPU is slower than it could be: FlexAttention failed: %s", str(cause).split("\n")[0]
        )
        return None
    return attend
