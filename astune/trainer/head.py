"""The language-model head at loss positions only, a chunk of rows at a time, forward and backward at once.

The loss is a sum over tokens, so a chunk's gradient is known as soon as its logits are: they turn into it in
place. One chunk's logits are all of the size [rows, vocabulary] that exists, and only blocks of them are ever
float32. Nothing goes through autograd but the loss itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astune.engine.local.grammar import Bits, forbid_others
from astune.engine.local.softmax import exp_, row_sums, softmax_kernels
from astune.trainer.loss import LossSums
from astune.trainer.master_weights import add_up

LOGITS_PER_CHUNK = 1 << 24
"""Elements of one chunk's logits, 64 MiB in float32; the matrix products want some hundred rows."""
LOGITS_PER_BLOCK = 1 << 20
"""Elements of what is float32 at once; 4 MiB stay near the cores."""
ACCELERATOR_LOGITS = 1 << 27
"""Elements of a chunk on an accelerator, which is one block there: each chunk starts some thirty kernels."""

ChunkLoss = Callable[[Tensor, Tensor, slice], tuple[Tensor, LossSums]]
"""(log-probability [E], entropy [E], which targets) of a chunk -> the chunk's part of the loss."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The grammars' masks of allowed tokens, each once; they are unpacked a few rows at a time.

    `mask_R` is the index of each row's mask in `masks`, -1 for a row after which every token could follow.
    """

    masks: list[Bits]
    mask_R: NDArray[np.int64]

    def __getitem__(self, rows: slice) -> RowMasks:
        return RowMasks(self.masks, self.mask_R[rows])

    def apply(self, logits_CV: Tensor, rows_per_block: int) -> None:
        """Take the probability from the tokens that they do not allow, in place."""
        constrained = np.flatnonzero(self.mask_R >= 0).tolist()
        for start in range(0, len(constrained), rows_per_block):
            rows = constrained[start : start + rows_per_block]
            forbid_others(logits_CV, {row: self.masks[self.mask_R[row]] for row in rows})


@dataclass(frozen=True, slots=True)
class Targets:
    """E tokens to predict from R hidden rows; several tokens may follow the same row where the tree branches.

    `row_E` ascends, so that a chunk of rows is a slice of tokens. `masks` is None where no row has one.
    """

    row_E: Tensor
    token_E: Tensor
    masks: RowMasks | None = None

    def chunks(self, n_rows: int, rows_per_chunk: int) -> Iterator[tuple[slice, slice, Targets]]:
        """Slices of rows, of the tokens that follow them, and those tokens with rows counted from the slice's first."""
        starts = torch.arange(0, n_rows + rows_per_chunk, rows_per_chunk, device=self.row_E.device)
        edges = torch.searchsorted(self.row_E, starts).tolist()
        for number, (first, last) in enumerate(pairwise(edges)):
            rows = slice(number * rows_per_chunk, min((number + 1) * rows_per_chunk, n_rows))
            tokens = slice(first, last)
            masks = self.masks[rows] if self.masks is not None else None
            yield rows, tokens, Targets(self.row_E[tokens] - rows.start, self.token_E[tokens], masks)


@dataclass(frozen=True, slots=True)
class Softmax:
    """Convert a chunk's logits to log-probabilities: (logit - top) / temperature - lse.

    `lse_C` is taken after the row's largest, so that a token of probability 0.99 keeps its last digits: of a
    float32 near 20, the usual log-sum-exp, only 2e-6 is left, a thousandth of such a token's gradient.
    """

    logits_CV: Tensor
    top_C: Tensor
    lse_C: Tensor
    entropy_C: Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """A linear head with the sampling temperature. The gradient buffers are float32 and None where it is frozen."""

    weight_VD: Tensor
    bias_V: Tensor | None
    temperature: float
    weight_grad_VD: Tensor | None = None
    bias_grad_V: Tensor | None = None
    product: Callable[[Tensor], Tensor] | None = None
    """Computes the logits in place of torch, whose last bits may be others."""

    @torch.no_grad()
    def logprobs(self, hidden_RD: Tensor, targets: Targets) -> Tensor:
        """The log-probability [E] of each target."""
        parts: list[Tensor] = []
        for rows, _, chunk in targets.chunks(len(hidden_RD), self._rows_per_chunk):
            parts.append(self._of_targets(self._softmax(self._logits(hidden_RD[rows], chunk.masks)), chunk))
        return torch.cat(parts)

    @torch.no_grad()
    def distributions(self, hidden_RD: Tensor, targets: Targets) -> Iterator[tuple[Tensor, Targets]]:
        """Every row's log-probabilities [B, V] in float32, a block at a time, with the targets that follow its rows."""
        for rows, _, chunk in targets.chunks(len(hidden_RD), self._rows_per_chunk):
            softmax = self._softmax(self._logits(hidden_RD[rows], chunk.masks))
            blocks = self._blocks(softmax.logits_CV, softmax.top_C)
            parts = chunk.chunks(len(softmax.top_C), self._rows_per_block)
            for (block, logits_BV), (_, _, part) in zip(blocks, parts, strict=True):
                yield logits_BV.sub_(softmax.lse_C[block, None]), part

    @torch.no_grad()
    def loss_and_gradient(
        self, hidden_RD: Tensor, targets: Targets, loss: ChunkLoss, *, entropy_has_gradient: bool
    ) -> tuple[LossSums, Tensor]:
        """The loss's sums and its gradient [R, D]; adds the head's own gradient to its buffers."""
        grad_RD = torch.empty_like(hidden_RD)
        buffer = hidden_RD.new_empty(min(self._rows_per_chunk, len(hidden_RD)), len(self.weight_VD))
        sums: list[LossSums] = []
        for rows, tokens, chunk in targets.chunks(len(hidden_RD), self._rows_per_chunk):
            hidden_CD = hidden_RD[rows]
            logits_CV = self._logits(hidden_CD, chunk.masks, buffer)
            softmax = self._softmax(logits_CV)
            with torch.enable_grad():
                logprob_E = self._of_targets(softmax, chunk).requires_grad_()
                entropy_E = softmax.entropy_C[chunk.row_E].requires_grad_()
                value, chunk_sums = loss(logprob_E, entropy_E, tokens)
                slope_E, entropy_slope_E = torch.autograd.grad(
                    value, (logprob_E, entropy_E), allow_unused=True, materialize_grads=True
                )
            sums.append(chunk_sums)
            self._into_gradient(softmax, chunk, slope_E, entropy_slope_E if entropy_has_gradient else None)
            torch.mm(logits_CV, self.weight_VD, out=grad_RD[rows])
            if self.weight_grad_VD is not None:
                _add_product(self.weight_grad_VD, logits_CV.T, hidden_CD)
            if self.bias_grad_V is not None:
                self.bias_grad_V.add_(logits_CV.sum(dim=0, dtype=torch.float32))
        return sum(sums[1:], sums[0]), grad_RD

    @property
    def _rows_per_chunk(self) -> int:
        return max(1, (LOGITS_PER_CHUNK if self._on_cpu else ACCELERATOR_LOGITS) // len(self.weight_VD))

    @property
    def _rows_per_block(self) -> int:
        return max(1, (LOGITS_PER_BLOCK if self._on_cpu else ACCELERATOR_LOGITS) // len(self.weight_VD))

    @property
    def _on_cpu(self) -> bool:
        return self.weight_VD.device.type == "cpu"

    def _blocks(self, logits_CV: Tensor, top_C: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """A few rows at a time in float32, less the row's largest, with the temperature applied."""
        for start in range(0, len(logits_CV), self._rows_per_block):
            rows = slice(start, start + self._rows_per_block)
            logits_BV = logits_CV[rows].to(top_C.dtype, copy=True).sub_(top_C[rows, None])
            yield rows, logits_BV.div_(self.temperature) if self.temperature != 1 else logits_BV

    def _logits(self, hidden_CD: Tensor, masks: RowMasks | None, buffer: Tensor | None = None) -> Tensor:
        """[C, V] in the compute dtype, before the temperature, within the rows' grammars."""
        out = self._product(hidden_CD, buffer) if self.product is None else self.product(hidden_CD)
        if masks is not None:
            masks.apply(out, self._rows_per_block)
        return out.contiguous()

    def _product(self, hidden_CD: Tensor, buffer: Tensor | None) -> Tensor:
        rows = len(hidden_CD)
        out = buffer[:rows] if buffer is not None else hidden_CD.new_empty(rows, len(self.weight_VD))
        torch.mm(hidden_CD, self.weight_VD.T, out=out)
        return out if self.bias_V is None else out.add_(self.bias_V)

    def _softmax(self, logits_CV: Tensor) -> Softmax:
        if kernels := softmax_kernels(logits_CV):
            return Softmax(logits_CV, *kernels.statistics(logits_CV, self.temperature))
        top_C = logits_CV.amax(dim=-1).to(torch.promote_types(logits_CV.dtype, torch.float32))
        lse: list[Tensor] = []
        entropy: list[Tensor] = []
        for _, logits_BV in self._blocks(logits_CV, top_C):
            weight_BV = exp_(logits_BV.clone())
            sum_B = row_sums(weight_BV)
            lse.append(sum_B.log())
            entropy.append(lse[-1] - weight_BV.mul_(logits_BV).sum(dim=-1) / sum_B)
        return Softmax(logits_CV, top_C, torch.cat(lse), torch.cat(entropy))

    def _of_targets(self, softmax: Softmax, targets: Targets) -> Tensor:
        row_E = targets.row_E
        logit_E = softmax.logits_CV[row_E, targets.token_E].to(softmax.top_C.dtype) - softmax.top_C[row_E]
        return logit_E / self.temperature - softmax.lse_C[row_E]

    def _into_gradient(
        self, softmax: Softmax, targets: Targets, slope_E: Tensor, entropy_slope_E: Tensor | None
    ) -> None:
        """Overwrite logits by the loss's gradient with respect to them.

        d logprob[t] / d logits = onehot(t) - prob;  d entropy / d logits = - prob * (logprob + entropy)

        The two parts of a target meet in float32: of a token of probability 0.997 bfloat16 would leave nothing.
        """

        def of_rows(values_E: Tensor) -> Tensor:
            return torch.zeros_like(softmax.top_C).index_add_(0, targets.row_E, values_E)

        entropy_slope_C = None if entropy_slope_E is None else of_rows(entropy_slope_E)
        if kernels := softmax_kernels(softmax.logits_CV):
            statistics = (softmax.top_C, softmax.lse_C, softmax.entropy_C)
            chosen = (targets.row_E, targets.token_E)
            kernels.into_gradient(softmax.logits_CV, self.temperature, statistics, chosen, slope_E, entropy_slope_C)
            return
        slope_C = of_rows(slope_E)
        blocks = self._blocks(softmax.logits_CV, softmax.top_C)
        chunks = targets.chunks(len(slope_C), self._rows_per_block)
        for (rows, logits_BV), (_, tokens, block) in zip(blocks, chunks, strict=True):
            logprob_BV = logits_BV.sub_(softmax.lse_C[rows, None])
            grad_BV = exp_(logprob_BV.clone())
            weight = -slope_C[rows, None]
            if entropy_slope_C is not None:
                weight = weight - logprob_BV.add_(softmax.entropy_C[rows, None]).mul_(entropy_slope_C[rows, None])
            grad_BV.mul_(weight)
            grad_BV.index_put_((block.row_E, block.token_E), slope_E[tokens], accumulate=True)
            softmax.logits_CV[rows] = grad_BV.div_(self.temperature) if self.temperature != 1 else grad_BV


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right; where their dtypes differ the product is rounded first."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        add_up(total, left @ right)
