"""Two layers that nearly every model has, root-mean-square norm and gated SiLU, with a backward pass of their own.

Written as single operations, autograd keeps and touches a dozen full-size temporaries for each. Here a few hundred
tokens at a time go through all of it while they are in the cache, and only the inputs are kept. A layer is
replaced where, on random input, it computes what the original computes; any other stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astune.trainer.recompute import can_recompute

ELEMENTS_PER_BLOCK = 1 << 18
"""A float32 temporary of a block is 1 MiB. An accelerator takes everything as one block: each would start kernels."""


def use_fast_layers(model: nn.Module) -> int:
    """Replace what can be replaced, in place; returns how many layers that were."""
    replaced = 0
    for module in model.modules():
        forward = _fast_forward(module)
        if forward is not None and _agree(module, forward):
            module.forward = forward
            replaced += 1
    return replaced


def _fast_forward(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    if len(inspect.signature(module.forward).parameters) > 1:  # such as a norm that is handed a gate
        return None
    parts = cast(Any, module)
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" in type(module).__name__ and isinstance(weight, nn.Parameter) and isinstance(epsilon, float):
        return lambda hidden: _norm(hidden, parts.weight, epsilon)
    if all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj")):
        return lambda hidden: parts.down_proj(_gated(parts.gate_proj(hidden), parts.up_proj(hidden)))
    return None


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    y, scale_T1 = cast(tuple[Tensor, Tensor], _RmsNorm.apply(x, weight, epsilon))
    kept, kept_weight = x.detach(), weight.detach()
    return can_recompute(y, lambda: _normed(kept, kept_weight, scale_T1))


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    kept_gate, kept_up = gate.detach(), up.detach()
    return can_recompute(cast(Tensor, _GatedSilu.apply(gate, up)), lambda: F.silu(kept_gate).mul_(kept_up))


@torch.no_grad()
def _agree(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> bool:
    parameter = next(module.parameters())
    width = parameter.shape[-1] if parameter.dim() == 1 else cast(Any, module).gate_proj.in_features
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 3, width, generator=generator).to(parameter.device, parameter.dtype)
    try:
        ours, theirs = forward(hidden), module(hidden)
    except (RuntimeError, TypeError, AttributeError):
        return False
    if not isinstance(theirs, Tensor) or not theirs.any():  # zeros, as of a projection that starts so, tell nothing
        return False
    tolerance = 16 * torch.finfo(parameter.dtype).eps
    return bool((ours - theirs).norm() <= tolerance * theirs.norm())


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


class _RmsNorm(torch.autograd.Function):
    """y = weight * (x / rms(x)), the quotient rounded to the compute dtype before the weight multiplies it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        x_TD = x.flatten(0, -2)
        scale_T1 = torch.empty(len(x_TD), 1, dtype=_wide_dtype(x), device=x.device)
        for rows in _blocks(x_TD):
            scale_T1[rows] = _wide(x_TD[rows]).square_().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale_T1)
        ctx.mark_non_differentiable(scale_T1)
        return _normed(x, weight, scale_T1), scale_T1

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale_T1 = ctx.saved_tensors
        x_TD, grad_y_TD = x.flatten(0, -2), grad_outputs[0].flatten(0, -2)
        grad_x_TD = torch.empty_like(x_TD)
        weight_D = weight.to(_wide_dtype(x))
        grad_weight_D = torch.zeros_like(weight_D)
        for rows in _blocks(x_TD):
            unit_CD = _wide(x_TD[rows]).mul_(scale_T1[rows])
            grad_CD = _wide(grad_y_TD[rows])
            if ctx.needs_input_grad[1]:
                grad_weight_D += (grad_CD * unit_CD).sum(dim=0)
            grad_CD.mul_(weight_D)
            along_C1 = (grad_CD * unit_CD).mean(dim=-1, keepdim=True)
            grad_x_TD[rows] = grad_CD.sub_(unit_CD.mul_(along_C1)).mul_(scale_T1[rows])
        return grad_x_TD.view(x.shape), grad_weight_D.to(weight.dtype), None


def _normed(x: Tensor, weight: Tensor, scale_T1: Tensor) -> Tensor:
    x_TD = x.flatten(0, -2)
    y_TD = torch.empty_like(x_TD)
    for rows in _blocks(x_TD):
        torch.mul(_wide(x_TD[rows]).mul_(scale_T1[rows]).to(x.dtype), weight, out=y_TD[rows])
    return y_TD.view(x.shape)


class _GatedSilu(torch.autograd.Function):
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        gate_TD, up_TD, grad_TD = (tensor.flatten(0, -2) for tensor in (gate, up, grad_outputs[0]))
        grad_gate_TD, grad_up_TD = torch.empty_like(gate_TD), torch.empty_like(up_TD)
        for rows in _blocks(gate_TD):
            torch.mul(grad_TD[rows], F.silu(gate_TD[rows]), out=grad_up_TD[rows])
            grad_gate_TD[rows] = torch.ops.aten.silu_backward(grad_TD[rows] * up_TD[rows], gate_TD[rows])
        return grad_gate_TD.view(gate.shape), grad_up_TD.view(up.shape)
