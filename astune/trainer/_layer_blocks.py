"""Root-mean-square norm and gated SiLU, forward and backward, by torch's operators, for every device and dtype.

A few hundred tokens at a time go through all of it while they are in the cache. `_layer_kernels.py` has the same
functions compiled, and its tests compare both.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

ELEMENTS_PER_BLOCK = 1 << 18
"""A float32 temporary of a block is 1 MiB. An accelerator takes everything as one block: each would start kernels."""


def norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normed tensor, and the scale of each row [T, 1]."""
    x_TD = x.flatten(0, -2)
    scale_T1 = torch.empty(len(x_TD), 1, dtype=_wide_dtype(x), device=x.device)
    for rows in _blocks(x_TD):
        scale_T1[rows] = _wide(x_TD[rows]).square_().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return normed(x, weight, scale_T1), scale_T1


def normed(x: Tensor, weight: Tensor, scale_T1: Tensor) -> Tensor:
    x_TD = x.flatten(0, -2)
    y_TD = torch.empty_like(x_TD)
    for rows in _blocks(x_TD):
        torch.mul(_wide(x_TD[rows]).mul_(scale_T1[rows]).to(x.dtype), weight, out=y_TD[rows])
    return y_TD.view(x.shape)


def norm_backward(
    x: Tensor, weight: Tensor, scale_T1: Tensor, grad: Tensor, *, of_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and, if `of_weight`, of the weight."""
    x_TD, grad_y_TD = x.flatten(0, -2), grad.flatten(0, -2)
    grad_x_TD = torch.empty_like(x_TD)
    weight_D = weight.to(_wide_dtype(x))
    grad_weight_D = torch.zeros_like(weight_D)
    for rows in _blocks(x_TD):
        unit_CD = _wide(x_TD[rows]).mul_(scale_T1[rows])
        grad_CD = _wide(grad_y_TD[rows])
        if of_weight:
            grad_weight_D += (grad_CD * unit_CD).sum(dim=0)
        grad_CD.mul_(weight_D)
        along_C1 = (grad_CD * unit_CD).mean(dim=-1, keepdim=True)
        grad_x_TD[rows] = grad_CD.sub_(unit_CD.mul_(along_C1)).mul_(scale_T1[rows])
    return grad_x_TD.view(x.shape), grad_weight_D.to(weight.dtype) if of_weight else None


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


def gated_silu_backward(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up."""
    gate_TD, up_TD, grad_TD = (tensor.flatten(0, -2) for tensor in (gate, up, grad))
    grad_gate_TD, grad_up_TD = torch.empty_like(gate_TD), torch.empty_like(up_TD)
    for rows in _blocks(gate_TD):
        torch.mul(grad_TD[rows], F.silu(gate_TD[rows]), out=grad_up_TD[rows])
        grad_gate_TD[rows] = torch.ops.aten.silu_backward(grad_TD[rows] * up_TD[rows], gate_TD[rows])
    return grad_gate_TD.view(gate.shape), grad_up_TD.view(up.shape)


def _blocks(x_TD: Tensor) -> Iterator[slice]:
    n_rows, width = x_TD.shape
    rows = max(1, ELEMENTS_PER_BLOCK // width) if x_TD.device.type == "cpu" else max(1, n_rows)
    for start in range(0, n_rows, rows):
        yield slice(start, start + rows)


def _wide_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _wide(tensor: Tensor) -> Tensor:
    """A copy in float32 or better, free to be overwritten."""
    return tensor.to(_wide_dtype(tensor), copy=True)
