"""Parts of the softmax that sampling and training compute alike: exponentials, also of forbidden tokens, and sums."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_LOWEST = -80.0
_IMPOSSIBLE = 1e-34
"""A little above exp(-80)."""
_BLOCK = 256
"""Weights of a row are summed over blocks of the vocabulary first, and these in float64."""


def exp_(logits: Tensor) -> Tensor:
    """exp(logits) in place, for logits of at most about 0; exactly 0 below -78.3.

    Where it underflows, as for every token that a grammar forbids, the exponential of CPUs is ten times slower.
    """
    return F.threshold(logits.clamp_(min=_LOWEST).exp_(), _IMPOSSIBLE, 0.0, inplace=True)


def blocks(weights_BV: Tensor) -> Tensor:
    """Weights in blocks [B, N, M], the last one filled up with zeros."""
    padding = -weights_BV.shape[1] % _BLOCK
    return (F.pad(weights_BV, (0, padding)) if padding else weights_BV).unflatten(1, (-1, _BLOCK))


def cumulative(weights_BNM: Tensor) -> Tensor:
    """Sum of each row up to the end of each block, [B, N] in float64, on the CPU: not every accelerator has that."""
    return weights_BNM.sum(dim=2).cpu().double().cumsum(1)


def row_sums(weights_BV: Tensor) -> Tensor:
    """Sum of each row [B]; on a CPU to the last bit what `cumulative` ends with."""
    if weights_BV.device.type != "cpu":
        return weights_BV.sum(dim=1)
    return cumulative(blocks(weights_BV))[:, -1].to(weights_BV.dtype)
