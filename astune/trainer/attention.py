"""Attention over a prefix tree, following a plan: no mask over the whole tree is ever built.

It is reached through transformers' attention interface under the name `TREE_ATTENTION`, so a model needs no
change. Outside `attending(plan)` it refuses to run. On a GPU it is FlexAttention; on a CPU compiled kernels, or where
there are none plain matrix products, in which a key head's query heads are rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from astune.engine.local.tree_attention import Tiles, TreeKernels, kernels_for
from astune.schema import TrainerError
from astune.trainer._flex import flex_for
from astune.trainer.attention_plan import AttentionPlan, BranchBatch

TREE_ATTENTION = "astune_tree"

_current_plan: ContextVar[AttentionPlan | None] = ContextVar("astune_attention_plan", default=None)


@contextmanager
def attending(plan: AttentionPlan) -> Iterator[None]:
    """Make `plan` what the model's attention layers follow."""
    token = _current_plan.set(plan)
    try:
        yield
    finally:
        _current_plan.reset(token)


class _Tiled(torch.autograd.Function):
    """The same as `_Batched` by the compiled kernels, tokens first: query [T, H, G, D], key and value [T, H, D]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, tiles: Tiles, kernels: TreeKernels
    ) -> Tensor:
        out, log2_sums = kernels.attend(query, key, value, tiles, scale)
        ctx.save_for_backward(query, key, value, out, log2_sums)
        ctx.scale, ctx.tiles, ctx.kernels = scale, tiles, kernels
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.kernels.attend_backward(*ctx.saved_tensors, grad_outputs[0], ctx.tiles, ctx.scale)
        return *grads, None, None, None


class _Batched(torch.autograd.Function):
    """query [H, T, G, D], key and value [H, T, D] -> [H, T, G, D], for H key heads of G query heads each.

    Scores are computed again in the backward pass, so that only queries, keys and values are kept.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, plan: AttentionPlan) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.plan = scale, plan
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        for batch in plan.batches:
            queries, keys, values = _gather(batch, query, key, value)
            part = _probabilities(queries, keys, batch, scale) @ values
            part = part.unflatten(1, (-1, query.shape[2])).view(len(key), -1, *out.shape[2:])
            out.index_copy_(1, batch.own_row, part.index_select(1, batch.own))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        sums = torch.promote_types(key.dtype, torch.float32)
        grad_key, grad_value = torch.zeros_like(key, dtype=sums), torch.zeros_like(value, dtype=sums)
        for batch in ctx.plan.batches:
            queries, keys, values = _gather(batch, query, key, value)
            grads = grad_outputs[0].index_select(1, batch.row_nL.flatten())
            grads = grads.index_fill_(1, batch.foreign, 0).view(*queries.shape[:2], -1)
            probabilities = _probabilities(queries, keys, batch, ctx.scale)
            _add(grad_value, batch, probabilities.mT @ grads)
            slopes = torch.ops.aten._softmax_backward_data(grads @ values.mT, probabilities, -1, probabilities.dtype)
            _add(grad_key, batch, _scaled_product(slopes.mT, queries, ctx.scale))
            part = _scaled_product(slopes, keys, ctx.scale).view(len(key), -1, *query.shape[2:])
            grad_query.index_copy_(1, batch.own_row, part.index_select(1, batch.own))
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _gather(batch: BranchBatch, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """-> queries [H * n, L * G, D], keys and values [H * n, A + L, D]."""
    n_branches, longest = batch.row_nL.shape
    rows = batch.row_nL.flatten()
    queries = query.index_select(1, rows).view(len(key) * n_branches, longest * query.shape[2], -1)
    return queries, _behind_ancestors(batch, key, rows), _behind_ancestors(batch, value, rows)


def _behind_ancestors(batch: BranchBatch, tensor: Tensor, rows: Tensor) -> Tensor:
    n_branches, longest = batch.row_nL.shape
    own = tensor.index_select(1, rows).view(len(tensor), n_branches, longest, -1)
    shared = tensor.index_select(1, batch.ancestor_A).unsqueeze(1).expand(-1, n_branches, -1, -1)
    return torch.cat([shared, own], dim=2).flatten(0, 1)


def _probabilities(queries: Tensor, keys: Tensor, batch: BranchBatch, scale: float) -> Tensor:
    """[H * n, L * G, A + L]: everything before a branch is seen, the branch itself causally."""
    scores = _scaled_product(queries, keys.mT, scale)
    longest = batch.row_nL.shape[1]
    future = torch.full((longest, longest), float("-inf"), dtype=scores.dtype, device=scores.device).triu_(1)
    scores.unflatten(1, (longest, -1))[..., len(batch.ancestor_A) :].add_(future.unsqueeze(1))
    return scores.softmax(dim=-1)


def _scaled_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Scaled inside the product, before it is rounded."""
    out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=scale)


def _add(total: Tensor, batch: BranchBatch, part: Tensor) -> None:
    """Add [H * n, A + L, D] to the places [H, T, D] that it was gathered from."""
    n_branches = len(batch.row_nL)
    part = part.unflatten(0, (-1, n_branches))
    n_ancestors = len(batch.ancestor_A)
    if n_ancestors:
        total.index_add_(1, batch.ancestor_A, part[:, :, :n_ancestors].sum(dim=1, dtype=total.dtype))
    own = part[:, :, n_ancestors:].flatten(1, 2).to(total.dtype)
    total.index_add_(1, batch.row_nL.flatten(), own.index_fill_(1, batch.padding, 0))


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function of transformers: query [1, heads, T, D], key and value [1, key heads, T, D] -> [1, T, heads,
    D]."""
    plan = _current_plan.get()
    if plan is None:
        raise TrainerError("tree attention was called outside a micro-batch", hint="this is a defect of astune")
    if sliding_window is not None and sliding_window < plan.longest_sequence:
        raise TrainerError(
            f"the model attends to {sliding_window} tokens only, and a timeline has {plan.longest_sequence}",
            hint=f"lower rollout.max_model_len to {sliding_window}",
        )
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if unsupported or dropout or attention_mask is not None:
        raise TrainerError(
            f"the model's attention uses {', '.join(unsupported) or 'dropout or a mask'}, which training cannot share "
            "among a prefix tree",
            hint="choose a model with plain softmax attention",
        )
    n_key_heads = key.shape[1]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    flex = flex_for(query, key)
    if flex is not None:
        grouped = query.shape[1] != n_key_heads
        return flex(query, key, value, block_mask=plan.block_mask, scale=scale, enable_gqa=grouped).transpose(
            1, 2
        ), None
    query_THGD = query[0].transpose(0, 1).unflatten(1, (n_key_heads, -1))
    key_THD, value_THD = (tensor[0].transpose(0, 1) for tensor in (key, value))
    kernels = kernels_for(query, key, value)
    if kernels is not None:  # a model's tensors lie in memory with tokens first, so that nothing is copied
        tensors = query_THGD.contiguous(), key_THD.contiguous(), value_THD.contiguous()
        out_THGD = cast(Tensor, _Tiled.apply(*tensors, scale, plan.tiles(query_THGD.shape[2]), kernels))
    else:
        tensors = (tensor.transpose(0, 1).contiguous() for tensor in (query_THGD, key_THD, value_THD))
        out_THGD = cast(Tensor, _Batched.apply(*tensors, scale, plan)).transpose(0, 1)
    return out_THGD.flatten(1, 2)[None], None


AttentionInterface.register(TREE_ATTENTION, tree_attention)
