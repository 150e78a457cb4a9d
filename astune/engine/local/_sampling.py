"""Sampling of tokens with exact log-probabilities, with a random stream per request.

Inverse transform sampling: one uniform number of the request's own stream is looked up in the cumulative
distribution. One draw a token costs nothing, where noise over the whole vocabulary would.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local.softmax import blocks, cumulative, exp_, softmax_kernels
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
    logits_BV = _truncated(logits_BV, params)
    temperatures = [1.0 if p.truncates else p.temperature or 1.0 for p in params]
    draws = [stream.random() if p.temperature else -1.0 for p, stream in zip(params, streams, strict=True)]
    kernels = softmax_kernels(logits_BV)
    drawn = kernels.draw if kernels else _draw
    tokens, logprobs = drawn(logits_BV.contiguous(), temperatures, draws)
    return [Sampled(*row, math.isfinite(row[1])) for row in zip(tokens, logprobs, strict=True)]


def _draw(logits_BV: Tensor, temperatures: list[float], draws: list[float]) -> tuple[list[int], list[float]]:
    """`SoftmaxKernels.draw` by torch's operators."""
    top_B1 = logits_BV.amax(dim=1, keepdim=True).float()
    temperature_B = torch.tensor(temperatures, device=logits_BV.device)
    tempered_BV = logits_BV.to(torch.float32, copy=True).sub_(top_B1)
    if any(temperature != 1 for temperature in temperatures):
        tempered_BV /= temperature_B[:, None]
    weights_BNM = blocks(exp_(tempered_BV))
    tokens_B, total_B = _inverse_transform(weights_BNM, torch.tensor(draws, dtype=torch.float64))
    if greedy := [row for row, number in enumerate(draws) if number < 0]:
        tokens_B[greedy] = logits_BV[greedy].argmax(dim=1)
    chosen_B = (logits_BV.gather(1, tokens_B[:, None])[:, 0].float() - top_B1[:, 0]) / temperature_B
    return tokens_B.tolist(), (chosen_B - total_B.log()).clamp_(max=0.0).tolist()


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


def _truncated(logits_BV: Tensor, params: list[SamplingParams]) -> Tensor:
    """Logits in which the rows that are sampled from a part of their tokens have that alone, with the temperature
    applied.
    """
    rows = [row for row, p in enumerate(params) if p.truncates and p.temperature]
    if rows:
        logits_BV = logits_BV.to(torch.float32, copy=True)
        for row in rows:
            logits_BV[row] = _most_likely(
                (logits_BV[row] - logits_BV[row].max()) / params[row].temperature, params[row]
            )
    return logits_BV


def _most_likely(logits_V: Tensor, params: SamplingParams) -> Tensor:
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
