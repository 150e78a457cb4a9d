"""Two layers that nearly every model has, root-mean-square norm and gated SiLU, with a backward pass of their own.

Written as single operations, autograd keeps and touches a dozen full-size temporaries for each. Here only the inputs
are kept, and go through all of it at once: compiled on a CPU, by torch's operators elsewhere. A layer is replaced
where, on random input, it computes what the original computes; any other stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.trainer import _layer_blocks
from astune.trainer._layer_kernels import kernels_for
from astune.trainer.recompute import can_recompute


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
    is_norm = "RMSNorm" in type(module).__name__ and isinstance(weight, nn.Parameter) and weight.dim() == 1
    if is_norm and isinstance(epsilon, float):
        return lambda hidden: _norm(hidden, parts.weight, epsilon)
    if all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj")):
        return lambda hidden: parts.down_proj(_gated(parts.gate_proj(hidden), parts.up_proj(hidden)))
    return None


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    y, scale_T1 = cast(tuple[Tensor, Tensor], _RmsNorm.apply(x, weight, epsilon))
    kept, kept_weight = x.detach(), weight.detach()
    return can_recompute(y, lambda: _layers_for(kept, kept_weight).normed(kept, kept_weight, scale_T1))


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    kept_gate, kept_up = gate.detach(), up.detach()
    y = cast(Tensor, _GatedSilu.apply(gate, up))
    return can_recompute(y, lambda: _layers_for(kept_gate, kept_up).gated_silu(kept_gate, kept_up))


@torch.no_grad()
def _agree(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> bool:
    parameter = next(module.parameters())
    width = parameter.shape[-1] if parameter.dim() == 1 else cast(Any, module).gate_proj.in_features
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 3, width, generator=generator).to(parameter.device, parameter.dtype)
    try:
        fast, original = forward(hidden), module(hidden)
    except (RuntimeError, TypeError, AttributeError):
        return False
    if not isinstance(original, Tensor) or not original.any():  # zeros, as of a projection that starts so, tell nothing
        return False
    tolerance = 16 * torch.finfo(parameter.dtype).eps
    return bool((fast - original).norm() <= tolerance * original.norm())


def _layers_for(x: Tensor, other: Tensor) -> Any:
    return kernels_for(x, other) or _layer_blocks


class _RmsNorm(torch.autograd.Function):
    """y = weight * (x / rms(x)), the quotient rounded to the compute dtype before the weight multiplies it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        y, scale_T1 = _layers_for(x, weight).norm(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale_T1)
        ctx.mark_non_differentiable(scale_T1)
        return y, scale_T1

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale_T1 = ctx.saved_tensors
        backward = _layers_for(x, weight).norm_backward
        return *backward(x, weight, scale_T1, grad_outputs[0], of_weight=ctx.needs_input_grad[1]), None


class _GatedSilu(torch.autograd.Function):
    """silu(gate) * up, the first factor rounded to the compute dtype."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _layers_for(gate, up).gated_silu(gate, up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return _layers_for(gate, up).gated_silu_backward(gate, up, grad_outputs[0])
