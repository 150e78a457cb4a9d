"""Rotary positions of transformers' attention layers, as one compiled operation forward and backward on a CPU.

Models of the Llama, Qwen and Mistral families call `apply_rotary_pos_emb` of their module, which is nine operators for
each of queries and keys. A layer gets a copy of its class's `forward` in which that name is the compiled operation,
where both compute the same on random input. The class, and layers of other models, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.trainer._layer_kernels import LayerKernels, kernels_for

_NAME = "apply_rotary_pos_emb"

Apply = Callable[..., tuple[Tensor, Tensor]]
"""(query [B, heads, T, D], key [B, key heads, T, D], cos [B, T, D], sin [B, T, D]) -> both rotated."""


def use_fast_rotary(model: nn.Module) -> int:
    """Replace the rotary positions of the model's attention layers, in place; returns of how many."""
    replaced = 0
    for module in model.modules():
        forward = type(module).forward
        fast = _with_kernel(forward) if isinstance(forward, FunctionType) and "forward" not in vars(module) else None
        if fast is not None:
            module.forward = MethodType(fast, module)  # which a copy of the module binds to the copied layer
            replaced += 1
    return replaced


@cache
def _with_kernel(forward: FunctionType) -> FunctionType | None:
    """Return the same method with the compiled operation; None where it does not call one that computes the same."""
    original = forward.__globals__.get(_NAME)
    if original is None or _NAME not in forward.__code__.co_names or not _agree(original):
        return None
    names = {**forward.__globals__, _NAME: partial(_apply, original)}
    fast = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    fast.__kwdefaults__ = forward.__kwdefaults__
    return fast


@torch.enable_grad()
def _agree(original: Apply) -> bool:
    """Compare outputs and gradients on random input."""
    generator = torch.Generator().manual_seed(0)

    def computed(apply: Apply) -> Tensor:
        generator.manual_seed(0)
        query, key, *angles, grad_query, grad_key = (
            torch.randn(1, *shape, generator=generator)
            for shape in ((4, 5, 16), (2, 5, 16), (5, 16), (5, 16), (4, 5, 16), (2, 5, 16))
        )
        leaves = query.requires_grad_(), key.requires_grad_()
        outputs = apply(*leaves, *angles)
        gradients = torch.autograd.grad(outputs, leaves, (grad_query, grad_key))
        return torch.cat([tensor.detach().flatten() for tensor in (*outputs, *gradients)])

    try:
        expected = computed(original)
        difference = computed(partial(_apply, original)) - expected
    except (RuntimeError, TypeError, ValueError):
        return False
    return bool(difference.norm() <= 4 * torch.finfo(torch.float32).eps * expected.norm())


def _apply(
    original: Apply, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    kernels = kernels_for(cos, sin)
    fits = cos.dim() == 3 and cos.shape[-1] % 2 == 0 and not (more or named or cos.requires_grad or sin.requires_grad)
    for tensor in (query, key):
        same = tensor.dtype == cos.dtype and tensor.device == cos.device and tensor.stride(-1) == 1
        fits = fits and same and tensor.dim() == 4 and (1, *tensor.shape[2:]) == cos.shape and len(tensor) == 1
    if kernels is None or not fits:
        return original(query, key, cos, sin, *more, **named)
    apply = cast(Callable[..., Tensor], _Rotation.apply)
    return apply(query, cos, sin, kernels), apply(key, cos, sin, kernels)


class _Rotation(torch.autograd.Function):
    """x [1, H, T, D] * cos [1, T, D] + (its halves exchanged, the first one negative) * sin."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, kernels: LayerKernels) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        return _rotated(x, cos, sin, kernels)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        grad = grad_outputs[0] if grad_outputs[0].stride(-1) == 1 else grad_outputs[0].contiguous()
        back = -sin.roll(sin.shape[-1] // 2, dims=-1)
        return _rotated(grad, cos, back, ctx.kernels), None, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, kernels: LayerKernels) -> Tensor:
    """[1, H, T, D], in memory with tokens first, as projections and attention have it."""
    x_THD = x[0].transpose(0, 1)
    out_THD = torch.empty_like(x_THD, memory_format=torch.contiguous_format)
    kernels.rotate(x_THD, cos[0], sin[0], out_THD)
    return out_THD.transpose(0, 1)[None]
