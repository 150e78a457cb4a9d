"""Embeddings whose gradient goes straight into its float32 buffer, a row for each token that was read.

torch's own backward pass adds up the rows of a token that occurs often in the dtype of the weights: in bfloat16 on a
CPU the sum stops growing once it is 256 times a part, and what it ends at depends on how micro-batches are cut. It
also writes a gradient of the size of the vocabulary for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import new_class
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GradientOf = Callable[[Tensor], Tensor | None]
"""The float32 buffer of a weight's gradient; None where it is frozen."""


def sum_embeddings_apart(model: nn.Module, gradient_of: GradientOf) -> None:
    """Let every embedding that is trained add its gradient to the buffer of its weight itself."""

    def buffer_of(weight: Tensor) -> Tensor | None:  # unlike a bound method, it is not copied with a module
        return gradient_of(weight)

    for module in model.modules():
        if not isinstance(module, nn.Embedding) or gradient_of(module.weight) is None:
            continue
        if module.sparse or module.scale_grad_by_freq or module.max_norm is not None:
            continue
        kind = type(module)
        # One that does more, such as scaling what it looked up, reaches ours by its `super().forward`.
        module.__class__ = _Summed if kind is nn.Embedding else new_class(kind.__name__, (kind, _Summed))
        cast(_Summed, module).gradient_of = buffer_of


class _Summed(nn.Embedding):
    gradient_of: GradientOf

    def forward(self, input: Tensor) -> Tensor:
        total_VD = self.gradient_of(self.weight)
        if total_VD is None:  # as in a frozen copy of the model
            return super().forward(input)
        return cast(Tensor, _Lookup.apply(input, self.weight, total_VD, self.padding_idx))


class _Lookup(torch.autograd.Function):
    """The rows of a weight; backward adds to `total_VD` and leaves the weight itself without a gradient."""

    @staticmethod
    def forward(ctx: Any, token_ids: Tensor, weight_VD: Tensor, total_VD: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(token_ids)
        ctx.total_VD, ctx.padding = total_VD, padding
        return F.embedding(token_ids, weight_VD)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, None, None]:
        (token_ids,) = ctx.saved_tensors
        grad_TD = grad_outputs[0].flatten(0, -2)
        # Rows are summed by the number of the token among those that occur, so that each is added to the buffer once:
        # the order of the sums, and with it their last digits, is the same in every run on every device.
        token_U, number_T = token_ids.flatten().unique(return_inverse=True)
        sum_UD = torch.ops.aten.embedding_dense_backward(
            grad_TD.to(ctx.total_VD.dtype), number_T, len(token_U), padding_idx=-1, scale_grad_by_freq=False
        )
        if ctx.padding is not None:  # torch does not train what padding reads
            sum_UD[token_U == ctx.padding] = 0
        ctx.total_VD.index_add_(0, token_U, sum_UD)
        return None, None, None, None
