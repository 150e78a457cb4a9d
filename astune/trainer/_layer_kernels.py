"""`_layer_kernels.c`, compiled where it runs: what a training step on a CPU computes between its products.

For other devices and dtypes `_layer_blocks.py` has norms and gated SiLUs by torch's operators, a block at a time, and
models have their own rotary positions.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for

_SOURCE = Path(__file__).with_suffix(".c")
_ROWS_PER_PART = 32
"""Rows that a thread adds up of the norm weight's gradient, before all are added."""
_SIGNATURES = {
    "norm": [c_void_p] * 4 + [c_int64] * 2 + [c_float, c_int64],
    "normed": [c_void_p] * 4 + [c_int64] * 3,
    "norm_backward": [c_void_p] * 6 + [c_int64] * 4,
    "gated_silu": [c_void_p] * 3 + [c_int64] * 2,
    "gated_silu_backward": [c_void_p] * 5 + [c_int64] * 2,
    "rotate": [c_void_p, c_int64, c_int64] + [c_void_p] * 3 + [c_int64] * 6,
    "add_up": [c_void_p] * 2 + [c_int64] * 2,
}


def kernels_for(x: Tensor, *others: Tensor) -> LayerKernels | None:
    """The compiled functions, where they serve tensors of this kind and can be had; `others` are a norm's weight, or
    of the shape of `x`."""
    fits = all(x.shape[-other.dim() :] == other.shape and x.dtype == other.dtype for other in others)
    on_cpu = all(tensor.device.type == "cpu" for tensor in (x, *others))
    return _kernels(x.dtype) if fits and on_cpu else None


@cache
def _kernels(dtype: torch.dtype) -> LayerKernels | None:
    functions = compiled_for(dtype, _SOURCE, _SIGNATURES, doing="training")
    return None if functions is None else LayerKernels(functions)


class LayerKernels:
    """Tensors of any layout, all of one dtype; results are contiguous. See the source for what is computed."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def norm(self, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """The normed tensor, and the scale of each row [T, 1]."""
        x, weight = x.contiguous(), weight.contiguous()
        y, scale_T1 = torch.empty_like(x), x.new_empty(x.numel() // len(weight), 1, dtype=torch.float32)
        self._functions.norm(*addresses(x, weight, y, scale_T1), *_size(x), epsilon, torch.get_num_threads())
        return y, scale_T1

    def normed(self, x: Tensor, weight: Tensor, scale_T1: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty_like(x)
        self._functions.normed(*addresses(x, weight, scale_T1, y), *_size(x), torch.get_num_threads())
        return y

    def norm_backward(
        self, x: Tensor, weight: Tensor, scale_T1: Tensor, grad: Tensor, *, of_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and, if `of_weight`, of the weight."""
        x, weight, grad = x.contiguous(), weight.contiguous(), grad.contiguous()
        grad_x = torch.empty_like(x)
        rows, dim = _size(x)
        parts_PD = scale_T1.new_empty(-(-rows // _ROWS_PER_PART) if of_weight else 0, dim)
        self._functions.norm_backward(
            *addresses(x, weight, scale_T1, grad, grad_x, parts_PD if of_weight else None),
            *(rows, dim, _ROWS_PER_PART, torch.get_num_threads()),
        )
        return grad_x, parts_PD.sum(dim=0).to(weight.dtype) if of_weight else None

    def gated_silu(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        self._functions.gated_silu(*addresses(gate, up, out), gate.numel(), torch.get_num_threads())
        return out

    def gated_silu_backward(self, gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of gate and up."""
        gate, up, grad = gate.contiguous(), up.contiguous(), grad.contiguous()
        grads = torch.empty_like(gate), torch.empty_like(up)
        self._functions.gated_silu_backward(*addresses(gate, up, grad, *grads), gate.numel(), torch.get_num_threads())
        return grads

    def rotate(self, x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor, out_THD: Tensor) -> None:
        """Write `x_THD`, rotated by the angles of its positions, to `out_THD`; heads are contiguous in both."""
        cos_TD, sin_TD = cos_TD.contiguous(), sin_TD.contiguous()
        self._functions.rotate(
            *(x_THD.data_ptr(), *x_THD.stride()[:2], cos_TD.data_ptr(), sin_TD.data_ptr()),
            *(out_THD.data_ptr(), *out_THD.stride()[:2], *x_THD.shape, torch.get_num_threads()),
        )

    def add_up(self, total: Tensor, part: Tensor) -> None:
        """Add a part to a contiguous total in float32, in place."""
        part = part.contiguous()
        self._functions.add_up(*addresses(total, part), total.numel(), torch.get_num_threads())


def _size(x: Tensor) -> tuple[int, int]:
    """Rows and their width."""
    return x.numel() // x.shape[-1], x.shape[-1]
