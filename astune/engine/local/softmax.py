"""The softmax over a vocabulary, which sampling and training compute alike, to the last bit on a CPU.

`softmax.c`, compiled where it runs, reads a row once or twice; torch's operators would pass over it some fifteen times.
For other devices and dtypes, and where there is no gcc, the parts below are what both compute it by.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for

_SOURCE = Path(__file__).with_suffix(".c")
_SIGNATURES = {
    "statistics": [c_void_p, c_int64, c_int64, c_float] + [c_void_p] * 3 + [c_int64],
    "into_gradient": [c_void_p, c_int64, c_int64, c_float] + [c_void_p] * 6 + [c_int64, c_void_p, c_int64],
    "draw": [c_void_p, c_int64, c_int64] + [c_void_p] * 5 + [c_int64],
}
_LOWEST = -80.0
_IMPOSSIBLE = 1e-34
"""A little above exp(-80)."""
_BLOCK = 256
"""Weights of a row are summed over blocks of the vocabulary first, and these in float64; `BLOCK` of the source."""


def softmax_kernels(logits: Tensor) -> SoftmaxKernels | None:
    """The compiled functions, where they serve logits of this kind and can be had."""
    return _kernels(logits.dtype) if logits.device.type == "cpu" else None


@cache
def _kernels(dtype: torch.dtype) -> SoftmaxKernels | None:
    functions = compiled_for(dtype, _SOURCE, _SIGNATURES, doing="sampling and training")
    return None if functions is None else SoftmaxKernels(functions)


class SoftmaxKernels:
    """Contiguous logits [rows, vocabulary] of one dtype; the source describes what is computed."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def statistics(self, logits_CV: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Each row's largest logit, log-sum-exp after it, and entropy [C]."""
        top_C, lse_C, entropy_C = logits_CV.new_empty(3, len(logits_CV), dtype=torch.float32)
        self._functions.statistics(
            *(logits_CV.data_ptr(), *logits_CV.shape, temperature),
            *addresses(top_C, lse_C, entropy_C),
            torch.get_num_threads(),
        )
        return top_C, lse_C, entropy_C

    def into_gradient(
        self,
        logits_CV: Tensor,
        temperature: float,
        statistics: tuple[Tensor, Tensor, Tensor],
        targets: tuple[Tensor, Tensor],
        slope_E: Tensor,
        entropy_slope_C: Tensor | None,
    ) -> None:
        """Overwrite logits by a loss's gradient with respect to them.

        Args:
            statistics: what `statistics` returned for them.
            targets: row, ascending, and token of each [E].
            slope_E: the loss's derivative by the targets' log-probabilities, in float32.
            entropy_slope_C: its derivative by the rows' entropies.
        """
        row_E, token_E, slope_E = (each_E.contiguous() for each_E in (*targets, slope_E))  # kept for the call
        self._functions.into_gradient(
            *(logits_CV.data_ptr(), *logits_CV.shape, temperature),
            *addresses(*statistics, row_E, token_E, slope_E),
            *(len(slope_E), *addresses(entropy_slope_C), torch.get_num_threads()),
        )

    def draw(
        self, logits_BV: Tensor, temperatures: Sequence[float], draws: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """A token a row by inverse transform of its uniform draw, and its log-probability.

        Args:
            draws: negative for the most likely token.
        """
        rows, vocabulary = logits_BV.shape
        threads = torch.get_num_threads()
        tokens, logprobs = (c_int64 * rows)(), (c_float * rows)()
        sums = torch.empty(min(threads, rows), -(-vocabulary // _BLOCK), dtype=torch.float64)
        self._functions.draw(
            logits_BV.data_ptr(),
            rows,
            vocabulary,
            (c_float * rows)(*temperatures),
            (c_double * rows)(*draws),
            tokens,
            logprobs,
            sums.data_ptr(),
            threads,
        )
        return tokens[:], logprobs[:]


def exp_(logits: Tensor) -> Tensor:
    """exp(logits) in place, for logits of at most about 0; exactly 0 below -78.3.

    Where it underflows, as for every token that a grammar forbids, the exponential of CPUs is ten times slower.
    """
    return F.threshold(logits.clamp_(min=_LOWEST).exp_(), _IMPOSSIBLE, 0.0, inplace=True)


def blocks(weights_BV: Tensor) -> Tensor:
    """Weights in blocks [B, N, M], the last one filled up with zeros."""
    padding = -weights_BV.shape[1] % _BLOCK
    return (F.pad(weights_BV, (0, padding)) if padding else weights_BV).unflatten(1, (-1, _BLOCK))


def cumulative(weights_BNM: Tensor) -> Tensor:
    """Sum of each row up to the end of each block, [B, N] in float64, on the CPU: not every accelerator has that."""
    return weights_BNM.sum(dim=2).cpu().double().cumsum(1)


def row_sums(weights_BV: Tensor) -> Tensor:
    """Sum of each row [B]; on a CPU to the last bit what `cumulative` ends with."""
    if weights_BV.device.type != "cpu":
        return weights_BV.sum(dim=1)
    return cumulative(blocks(weights_BV))[:, -1].to(weights_BV.dtype)
