"""A linear layer with an adapter beside it (peft's), as one operation with a backward pass of its own.

peft scales and adds the adapter's product at the layer's full width, and so does its backward pass: each writes a
tensor of activations to memory and reads another. Here the scale is put on the narrow side, in the product of the
first factor, and the products are added where they are computed: they are rounded less often, and nothing else differs.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Adapter(NamedTuple):
    down_RD: Tensor
    up_ER: Tensor
    scale: float


def use_adapted_linear(module: nn.Module) -> None:
    """Have peft's linear layers inside `module` compute so, in place, whenever a single plain adapter is active."""
    from peft.tuners.lora import Linear

    for layer in module.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear:
            layer.forward = MethodType(_forward, layer)  # which a copy of the module binds to the copied layer


def _forward(layer: Any, x: Tensor, *arguments: Any, **named: Any) -> Tensor:
    adapter = _only_adapter(layer)
    if adapter is None or arguments or named:
        return type(layer).forward(layer, x, *arguments, **named)
    return cast(Tensor, _AdaptedLinear.apply(x, layer.base_layer.weight, layer.base_layer.bias, *adapter))


def _only_adapter(layer: Any) -> _Adapter | None:
    """None where something else than one adapter's product is to be added, or the layer itself is trained."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(active) != 1:
        return None
    name = active[0]
    down, up = layer.lora_A[name], layer.lora_B[name]
    trained = any(parameter.requires_grad for parameter in layer.base_layer.parameters())
    more = name in layer.lora_variant or up.bias is not None or not isinstance(layer.lora_dropout[name], nn.Identity)
    return None if trained or more else _Adapter(down.weight, up.weight, layer.scaling[name])


class _AdaptedLinear(torch.autograd.Function):
    """x weight^T + bias + scale * (x down^T) up^T, of which x and both factors have gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_ED: Tensor, bias_E: Tensor | None, down_RD: Tensor, up_ER: Tensor, scale: float
    ) -> Tensor:
        x_TD = x.reshape(-1, x.shape[-1])
        inner_TR = _scaled_product(x_TD, down_RD.T, scale)
        ctx.save_for_backward(x, weight_ED, down_RD, up_ER, inner_TR)
        ctx.scale = scale
        return F.linear(x_TD, weight_ED, bias_E).addmm_(inner_TR, up_ER.T).view(*x.shape[:-1], len(weight_ED))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_ED, down_RD, up_ER, inner_TR = ctx.saved_tensors
        x_TD, grad_TE = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (x, grad_outputs[0]))
        grad_inner_TR = _scaled_product(grad_TE, up_ER, ctx.scale)
        grad_x = (grad_TE @ weight_ED).addmm_(grad_inner_TR, down_RD).view(x.shape) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_inner_TR.T @ x_TD, grad_TE.T @ inner_TR, None


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Scaled inside the product, before it is rounded."""
    out = left.new_empty(left.shape[0], right.shape[1])
    return torch.addmm(out, left, right, beta=0, alpha=scale)
