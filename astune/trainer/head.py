"""The language-model head at loss positions only, a few rows at a time, forward and backward at once.

The loss is a sum over tokens, so a chunk's gradient is known as soon as its logits are: nothing of the size
[rows, vocabulary] outlives its chunk, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from astune.trainer.loss import LossSums

LOGITS_PER_CHUNK = 1 << 24
"""Elements of one chunk's logits: 64 MiB in float32, whatever the vocabulary."""


@dataclass(frozen=True, slots=True)
class Targets:
    """E tokens to predict from R hidden rows; several tokens may follow the same row where the tree branches.

    `row_E` ascends, so that a chunk of rows is a slice of tokens.
    """

    row_E: Tensor
    token_E: Tensor

    def chunks(self, n_rows: int, rows_per_chunk: int) -> Iterator[tuple[slice, slice]]:
        starts = torch.arange(0, n_rows + rows_per_chunk, rows_per_chunk, device=self.row_E.device)
        edges = torch.searchsorted(self.row_E, starts).tolist()
        for number, (first, last) in enumerate(pairwise(edges)):
            yield slice(number * rows_per_chunk, min((number + 1) * rows_per_chunk, n_rows)), slice(first, last)


@dataclass(frozen=True, slots=True)
class Head:
    """A linear head with the sampling temperature. The gradient buffers are float32 and None where it is frozen."""

    weight_VD: Tensor
    bias_V: Tensor | None
    temperature: float
    weight_grad_VD: Tensor | None = None
    bias_grad_V: Tensor | None = None

    @torch.no_grad()
    def logprobs(self, hidden_RD: Tensor, targets: Targets) -> Tensor:
        """The log-probability [E] of each target."""
        logprob_E = torch.empty(len(targets.token_E), dtype=torch.float32, device=hidden_RD.device)
        for rows, tokens in targets.chunks(len(hidden_RD), self._rows_per_chunk):
            logprob_CV = self._logprobs(hidden_RD[rows])
            logprob_E[tokens] = logprob_CV[targets.row_E[tokens] - rows.start, targets.token_E[tokens]]
        return logprob_E

    @torch.no_grad()
    def loss_and_gradient(
        self,
        hidden_RD: Tensor,
        targets: Targets,
        loss: Callable[[Tensor, Tensor, slice], tuple[Tensor, LossSums]],
        *,
        entropy_has_gradient: bool,
    ) -> tuple[LossSums, Tensor]:
        """The loss's sums and its gradient [R, D]; adds the head's own gradient to its buffers.

        `loss` maps (log-probability, entropy, which targets) of a chunk to the chunk's part of the loss.
        """
        grad_RD = torch.empty_like(hidden_RD)
        total: LossSums | None = None
        for rows, tokens in targets.chunks(len(hidden_RD), self._rows_per_chunk):
            hidden_CD = hidden_RD[rows]
            logprob_CV = self._logprobs(hidden_CD)
            prob_CV = logprob_CV.exp()
            entropy_C = -torch.linalg.vecdot(prob_CV, logprob_CV)
            row_E, token_E = targets.row_E[tokens] - rows.start, targets.token_E[tokens]
            with torch.enable_grad():
                logprob_E = logprob_CV[row_E, token_E].requires_grad_()
                entropy_E = entropy_C[row_E].requires_grad_()
                value, sums = loss(logprob_E, entropy_E, tokens)
                grad_E, entropy_grad_E = torch.autograd.grad(
                    value, (logprob_E, entropy_E), allow_unused=True, materialize_grads=True
                )
            total = sums if total is None else total + sums
            # d logprob[t] / d logits = onehot(t) - prob;  d entropy / d logits = - prob * (logprob + entropy)
            scale_C = torch.zeros_like(entropy_C).index_add_(0, row_E, grad_E)
            if entropy_has_gradient:
                entropy_scale_C = torch.zeros_like(entropy_C).index_add_(0, row_E, entropy_grad_E)
                slope_CV = logprob_CV.add_(entropy_C[:, None]).mul_(entropy_scale_C[:, None]).add_(scale_C[:, None])
                grad_CV = prob_CV.mul_(slope_CV).neg_()
            else:
                grad_CV = prob_CV.mul_(-scale_C[:, None])
            grad_CV.index_put_((row_E, token_E), grad_E, accumulate=True)
            grad_CV = grad_CV.div_(self.temperature).to(hidden_RD.dtype)
            grad_RD[rows] = grad_CV @ self.weight_VD
            if self.weight_grad_VD is not None:
                self.weight_grad_VD.add_(grad_CV.T @ hidden_CD)
            if self.bias_grad_V is not None:
                self.bias_grad_V.add_(grad_CV.sum(dim=0, dtype=torch.float32))
        if total is None:
            raise ValueError("a micro-batch without a trained token has no loss")
        return total, grad_RD

    @property
    def _rows_per_chunk(self) -> int:
        return max(1, LOGITS_PER_CHUNK // len(self.weight_VD))

    def _logprobs(self, hidden_CD: Tensor) -> Tensor:
        logits_CV = torch.nn.functional.linear(hidden_CD, self.weight_VD, self.bias_V).float().div_(self.temperature)
        return logits_CV.sub_(logits_CV.logsumexp(dim=-1, keepdim=True))
