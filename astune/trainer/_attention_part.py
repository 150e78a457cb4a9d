"""One part of an attention softmax, with its log-sum-exp, forward and backward.

The backward pass takes the output and log-sum-exp of the whole softmax of which this is a part, and returns
this part's exact share of the gradients. On a CPU it calls PyTorch's flash kernel; elsewhere it is plain
matrix products, which every device has.
"""

from __future__ import annotations

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """query [B, Q, H, D], key and value [B, K, H, D] -> output [B, Q, H, D] and log-sum-exp [B, Q, H].

    `causal` has query i see the keys 0 to i.
    """
    heads_first = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    if _has_flash(query):
        out, lse = _flash(*heads_first, 0.0, causal, scale=scale)
    else:
        scores = _scores(*heads_first[:2], causal=causal, scale=scale)
        lse = scores.logsumexp(dim=-1)
        out = (scores - lse.unsqueeze(-1)).exp().to(value.dtype) @ heads_first[2]
    return out.transpose(1, 2), lse.transpose(1, 2)


def attend_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `out` and `lse` belong to the whole softmax."""
    grad_out, query, key, value, out, lse = (
        tensor.transpose(1, 2) for tensor in (grad_out, query, key, value, out, lse)
    )
    if _has_flash(query):
        lse = lse.contiguous()
        grads = _flash_backward(grad_out, query, key, value, out, lse, 0.0, causal, scale=scale)
    else:
        probabilities = (_scores(query, key, causal=causal, scale=scale) - lse.unsqueeze(-1)).exp()
        delta = (grad_out * out).sum(dim=-1, keepdim=True, dtype=probabilities.dtype)
        grad_scores = probabilities * ((grad_out @ value.mT).to(probabilities.dtype) - delta) * scale
        grad_scores = grad_scores.to(query.dtype)
        grads = (grad_scores @ key, grad_scores.mT @ query, probabilities.to(query.dtype).mT @ grad_out)
    grad_query, grad_key, grad_value = (grad.transpose(1, 2) for grad in grads)
    return grad_query, grad_key, grad_value


def _has_flash(query: Tensor) -> bool:
    return query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float32)


def _scores(query: Tensor, key: Tensor, *, causal: bool, scale: float) -> Tensor:
    """[B, H, Q, K] in float32 or better; minus infinity where a query must not look."""
    scores = (query @ key.mT).to(torch.promote_types(query.dtype, torch.float32)) * scale
    if causal:
        n_queries, n_keys = scores.shape[-2:]
        hidden = torch.ones(n_queries, n_keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores
