"""Sampling of tokens with exact log-probabilities, with a random stream per request.

Inverse transform sampling: one uniform number of the request's own stream is looked up in the cumulative
distribution. One draw a token costs nothing, where noise over the whole vocabulary would.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local.softmax import blocks, cumulative, exp_
from astune.schema import SamplingParams


class Sampled(NamedTuple):
    """A row's outcome; `finite` is False where the model gave no usable numbers."""

    token: int
    logprob: float
    finite: bool


def random_stream(seed: int | None) -> random.Random:
    return random.Random(seed)


def sample(logits_BV: Tensor, params: list[SamplingParams], streams: list[random.Random]) -> list[Sampled]:
    """A token a row; log-probabilities in float32 under the distribution that was sampled from."""
    top_B1 = logits_BV.amax(dim=1, keepdim=True).float()
    temperature_B = torch.tensor([p.temperature or 1.0 for p in params], device=logits_BV.device)
    tempered_BV = logits_BV.to(torch.float32, copy=True).sub_(top_B1)
    if any(p.temperature not in (0.0, 1.0) for p in params):
        tempered_BV /= temperature_B[:, None]
    for row, p in enumerate(params):
        if p.truncates and p.temperature:
            tempered_BV[row] = _truncated(tempered_BV[row], p)
    weights_BNM = blocks(exp_(tempered_BV))
    draws_B = torch.tensor([stream.random() for stream in streams], dtype=torch.float64)
    tokens_B, total_B = _inverse_transform(weights_BNM, draws_B)
    greedy = [row for row, p in enumerate(params) if p.temperature == 0]
    if greedy:
        tokens_B[greedy] = logits_BV[greedy].argmax(dim=1)
    chosen_B = (logits_BV.gather(1, tokens_B[:, None])[:, 0].float() - top_B1[:, 0]) / temperature_B
    logprobs_B = (chosen_B - total_B.log()).clamp_(max=0.0)
    finite_B = torch.isfinite(total_B) & torch.isfinite(logprobs_B)
    rows = zip(tokens_B.tolist(), logprobs_B.tolist(), finite_B.tolist(), strict=True)
    return [Sampled(*row) for row in rows]


def _inverse_transform(weights_BNM: Tensor, draws_B: Tensor) -> tuple[Tensor, Tensor]:
    """The index whose share of the cumulative weights holds draw * total, and the total in float32.

    The few numbers that the look-up needs go to the CPU: not every accelerator has float64.
    """
    device = weights_BNM.device
    sums_BN = cumulative(weights_BNM)
    total_B = sums_BN[:, -1]
    block_B, rest_B = _locate(sums_BN, draws_B * total_B)
    rows_B = torch.arange(len(draws_B), device=device)
    chosen_BM = weights_BNM[rows_B, block_B.to(device)].cpu().double().cumsum(1)
    inside_B, _ = _locate(chosen_BM, rest_B)
    return (block_B * weights_BNM.shape[2] + inside_B).to(device), total_B.float().to(device)


def _locate(cumulative_BN: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """The first index whose cumulative weight exceeds the target, and how far into it the target lies."""
    highest_B = cumulative_BN[:, -1] * (1 - 2.0**-50)  # rounding must not carry the target past the last weight
    target_B = torch.minimum(target_B, highest_B)
    index_B = (cumulative_BN <= target_B[:, None]).sum(1).clamp_(max=cumulative_BN.shape[1] - 1)
    before_B = F.pad(cumulative_BN, (1, 0)).gather(1, index_B[:, None])[:, 0]
    return index_B, target_B - before_B


def _truncated(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """Keep the `top_k` most likely tokens, and of those the fewest that hold `top_p` of the probability.

    Where these are not finite all are kept, so that it is noticed.
    """
    values_V, order_V = logits_V.sort(descending=True)
    keep_V = torch.ones_like(values_V, dtype=torch.bool)
    if params.top_k:
        keep_V[params.top_k :] = False
    probabilities_V = values_V.masked_fill(~keep_V, float("-inf")).softmax(0)
    keep_V &= ~(probabilities_V.cumsum(0) - probabilities_V >= params.top_p)
    return torch.full_like(logits_V, float("-inf")).index_copy_(0, order_V[keep_V], values_V[keep_V])
