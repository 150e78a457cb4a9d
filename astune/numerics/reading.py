"""Recorded tokens as read by a model of the trainer: its last hidden states, to which any head can be applied.

The forward pass is done once; temperatures, cut-off tails and other heads are then tried on what it left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astune.trainer.head import Head
from astune.trainer.microbatch import MicroBatch
from astune.trainer.mismatch import Mismatch
from astune.trainer.policy_model import PolicyModel


@dataclass(frozen=True, slots=True)
class Reading:
    """Micro-batches of E recorded tokens, and the hidden rows [R, D] of each."""

    microbatches: Sequence[MicroBatch]
    hidden: Sequence[Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, model: PolicyModel, microbatches: Sequence[MicroBatch]) -> Reading:
        return cls(microbatches, [model.hidden(batch) for batch in microbatches])

    @property
    def engine_logprobs(self) -> Tensor:
        return torch.cat([batch.inputs.engine_logprob_E for batch in self.microbatches]).cpu()

    @property
    def versions(self) -> Tensor:
        return torch.cat([batch.inputs.version_E for batch in self.microbatches]).cpu()

    def logprobs(self, head: Head) -> Tensor:
        """The log-probability [E] of every token, on the CPU."""
        parts = zip(self.microbatches, self.hidden, strict=True)
        return torch.cat([head.logprobs(hidden_RD, batch.targets) for batch, hidden_RD in parts]).cpu()

    def mismatch(self, head: Head) -> Mismatch:
        return Mismatch(self.logprobs(head) - self.engine_logprobs, self.versions)

    def distributions(self, head: Head) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole distribution [B, V] that each of some tokens [B] was drawn from, as log-probabilities."""
        for batch, hidden_RD in zip(self.microbatches, self.hidden, strict=True):
            for logprob_RV, targets in head.distributions(hidden_RD, batch.targets):
                if len(targets.row_E):
                    yield logprob_RV[targets.row_E], targets.token_E
