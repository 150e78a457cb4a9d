"""Attention over a prefix tree: each segment attends to its ancestors, and causally to itself.

No mask over the whole tree is ever built. A segment's tokens are keys for everything that descends from it,
which in depth-first order is one dense block; its own triangle is computed beside those of other segments of
about its length. The parts of a token's softmax are merged by their log-sum-exp, in the forward pass and, since
the merged one is handed to each part, exactly in the backward pass.

It is reached through transformers' attention interface under the name `TREE_ATTENTION`, so a model needs no
change. Outside `attending(plan)` it refuses to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from astune.schema import TrainerError
from astune.trainer._attention_part import attend, attend_backward
from astune.trainer.trie import PrefixTree, Segment

TREE_ATTENTION = "astune_tree"


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries `[query_start, query_end)` that see all of the keys `[key_start, key_end)`."""

    key_start: int
    key_end: int
    query_start: int
    query_end: int


@dataclass(frozen=True, slots=True)
class _Triangles:
    """Segments computed as one padded batch [n, longest]: `source` are their places in the layout,
    `target` those in the flattened batch."""

    n: int
    longest: int
    source: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What attends to what, the same for every layer and head."""

    triangles: list[_Triangles]
    blocks: list[_Block]
    longest_sequence: int


def plan_attention(tree: PrefixTree, device: torch.device) -> AttentionPlan:
    blocks = [
        _Block(segment.start, segment.end, segment.end, segment.descendants_end)
        for segment in tree.segments
        if segment.descendants_end > segment.end
    ]
    longest_sequence = max(segment.depth + segment.length for segment in tree.segments)
    triangles = [_triangles(bucket, device) for bucket in _buckets(tree.segments)]
    return AttentionPlan(triangles, blocks, longest_sequence)


def _buckets(segments: list[Segment], waste: float = 0.25) -> Iterator[list[Segment]]:
    """Segments of about the same length: at most `waste` of a bucket's longest is padding."""
    bucket: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: (-segment.length, segment.start)):
        if bucket and segment.length < (1 - waste) * bucket[0].length - 4:
            yield bucket
            bucket = []
        bucket.append(segment)
    yield bucket


def _triangles(bucket: list[Segment], device: torch.device) -> _Triangles:
    longest = bucket[0].length
    source = torch.cat([torch.arange(segment.start, segment.end) for segment in bucket])
    target = torch.cat([torch.arange(segment.length) + row * longest for row, segment in enumerate(bucket)])
    return _Triangles(len(bucket), longest, source.to(device), target.to(device))


_current_plan: ContextVar[AttentionPlan | None] = ContextVar("astune_attention_plan", default=None)


@contextmanager
def attending(plan: AttentionPlan) -> Iterator[None]:
    """Make `plan` what the model's attention layers follow."""
    token = _current_plan.set(plan)
    try:
        yield
    finally:
        _current_plan.reset(token)


class _TreeAttention(torch.autograd.Function):
    """query [T, H, D], key and value [T, H, D] -> [T, H, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, plan: AttentionPlan) -> Tensor:
        n_tokens, n_heads, _ = query.shape
        out = query.new_empty(value.shape)
        lse = torch.empty(n_tokens, n_heads, dtype=torch.promote_types(query.dtype, torch.float32), device=query.device)
        for triangles in plan.triangles:
            padded = (_pad(tensor, triangles) for tensor in (query, key, value))
            part, part_lse = attend(*padded, causal=True, scale=scale)
            out[triangles.source] = part.flatten(0, 1)[triangles.target]
            lse[triangles.source] = part_lse.flatten(0, 1)[triangles.target]
        for block in plan.blocks:
            keys, queries = slice(block.key_start, block.key_end), slice(block.query_start, block.query_end)
            part, part_lse = attend(query[None, queries], key[None, keys], value[None, keys], causal=False, scale=scale)
            _merge(out[queries], lse[queries], part[0], part_lse[0])
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.scale, ctx.plan = scale, plan
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        grad_out = grad_outputs[0].contiguous()
        grads = [torch.empty_like(tensor) for tensor in (query, key, value)]
        for triangles in ctx.plan.triangles:
            padded = [_pad(tensor, triangles) for tensor in (grad_out, query, key, value, out, lse)]
            parts = attend_backward(*padded, causal=True, scale=ctx.scale)
            for grad, part in zip(grads, parts, strict=True):
                grad[triangles.source] = part.flatten(0, 1)[triangles.target]
        for block in ctx.plan.blocks:
            keys, queries = slice(block.key_start, block.key_end), slice(block.query_start, block.query_end)
            parts = attend_backward(
                *(tensor[None, queries] for tensor in (grad_out, query)),
                *(tensor[None, keys] for tensor in (key, value)),
                *(tensor[None, queries] for tensor in (out, lse)),
                causal=False,
                scale=ctx.scale,
            )
            for grad, part, where in zip(grads, parts, (queries, keys, keys), strict=True):
                grad[where] += part[0]
        return *grads, None, None


def _pad(tensor: Tensor, triangles: _Triangles) -> Tensor:
    """[T, ...] -> [n, longest, ...], zero where a segment is shorter."""
    if triangles.n == 1:
        start = int(triangles.source[0])
        return tensor[None, start : start + triangles.longest]
    padded = tensor.new_zeros(triangles.n * triangles.longest, *tensor.shape[1:])
    padded[triangles.target] = tensor[triangles.source]
    return padded.unflatten(0, (triangles.n, triangles.longest))


def _merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Widen the softmax behind `out` and `lse` by another part of its keys, in place."""
    merged = torch.logaddexp(lse, part_lse)
    out.mul_((lse - merged).exp().unsqueeze(-1)).add_(part * (part_lse - merged).exp().unsqueeze(-1))
    lse.copy_(merged)


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
    """What transformers calls: query [1, heads, T, D], key and value [1, key heads, T, D] -> [1, T, heads, D]."""
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
    repeats = query.shape[1] // key.shape[1]
    key_THD, value_THD = (_per_query_head(tensor, repeats) for tensor in (key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out_THD = _TreeAttention.apply(query[0].transpose(0, 1).contiguous(), key_THD, value_THD, scale, plan)
    return out_THD[None], None


def _per_query_head(tensor: Tensor, repeats: int) -> Tensor:
    """[1, key heads, T, D] -> [T, heads, D]."""
    return tensor[0].transpose(0, 1).repeat_interleave(repeats, dim=1).contiguous()


AttentionInterface.register(TREE_ATTENTION, tree_attention)
