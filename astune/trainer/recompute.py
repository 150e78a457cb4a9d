"""Activations that a backward pass computes again in place of keeping them; gradients are the same to the last bit.

A linear layer keeps its input, which behind a norm or a gated product is a third of all that a decoder keeps, and is
cheap to make once more: `Recomputing`. A timeline that is longer than a micro-batch should be cannot be cut; of such
a one every layer keeps its input alone, and is computed a second time: `layers_recomputed`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from astune.engine.local.allocator import give_back_freed_memory

_BYTES_MADE = 1 << 27
"""Size of tensors after which what they left behind is given back: glibc finds little use again for aligned blocks."""
_current: ContextVar[Recomputing | None] = ContextVar("astune_recomputing", default=None)


class Recomputing:
    """While it is entered, tensors given to `can_recompute` are not kept for the backward pass."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}
        """Tensors by address; an address is reused once its tensor is gone."""
        self._last: tuple[_Made, Tensor] | None = None
        """Several layers read the same tensor, one after another in the backward pass."""
        self._bytes_made = 0
        self._entered = ExitStack()

    def __enter__(self) -> Recomputing:
        token = _current.set(self)
        self._entered.callback(_current.reset, token)
        self._entered.enter_context(torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()  # the hooks refer to this object, which is to go with the graph
        self._made.clear()

    def add(self, tensor: Tensor, compute: Callable[[], Tensor]) -> None:
        self._made[tensor.data_ptr()] = _Made(weakref.ref(tensor), compute)
        self._count(tensor)

    def _count(self, made: Tensor) -> None:
        self._bytes_made += made.nbytes if made.device.type == "cpu" else 0
        if self._bytes_made >= _BYTES_MADE:
            self._bytes_made = 0
            give_back_freed_memory()

    def pack(self, tensor: Tensor) -> Any:
        made = self._made.get(tensor.data_ptr())
        original = None if made is None else made.tensor()
        if made is None or original is None or original.numel() != tensor.numel() or not tensor.is_contiguous():
            return tensor
        return made, tensor.shape

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        made, shape = packed
        if self._last is None or self._last[0] is not made:
            self._last = None
            self._last = made, made.compute()
            self._count(self._last[1])
        return self._last[1].view(shape)


class _Made:
    """A tensor, for as long as it is there, and how to make it again."""

    def __init__(self, tensor: weakref.ref[Tensor], compute: Callable[[], Tensor]) -> None:
        self.tensor = tensor
        self.compute = compute


def can_recompute(tensor: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    """Return the contiguous `tensor`, which `compute` makes again from what is kept anyway."""
    recomputing = _current.get()
    if recomputing is not None and torch.is_grad_enabled():
        recomputing.add(tensor, compute)
    return tensor


@contextmanager
def layers_recomputed(model: nn.Module, within: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Have the layers of a transformers model keep their input alone, while this is entered.

    Args:
        within: what a layer is computed in, the second time as well.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    contexts = {"context_fn": lambda: (nullcontext(), within())}
    for layer in layers:
        # In place of transformers' own flags, which need training mode: some layers drop out activations in it.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, **contexts)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
