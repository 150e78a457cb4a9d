"""How far engine and trainer may be apart before something other than rounding must be the cause."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from astune.trainer.mismatch import Mismatch


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds: of the mean absolute difference, of its 99 % quantile, and of the KL divergence (k3).

    `evidence` is that of `Draws.evidence` above which draws are not taken for honest ones: at most one false alarm in a
    million steps.
    """

    mean: float
    p99: float
    kl: float
    evidence: float = 6.0

    def exceeded_by(self, mismatch: Mismatch) -> dict[str, tuple[float, float]]:
        """The measures that are beyond their limit, each with its value and the limit."""
        measured = {
            "mean": (mismatch.mean, self.mean),
            "p99": (mismatch.quantiles()["p99"], self.p99),
            "KL": (mismatch.kl, self.kl),
        }
        return {name: pair for name, pair in measured.items() if not pair[0] <= pair[1]}


BFLOAT16 = Limits(mean=0.05, p99=0.5, kl=0.01)
FLOAT32 = Limits(mean=1e-4, p99=1e-3, kl=1e-6)


def limits_of(dtype: torch.dtype) -> Limits:
    """The limits where both sides compute in `dtype`."""
    return FLOAT32 if dtype == torch.float32 else BFLOAT16
