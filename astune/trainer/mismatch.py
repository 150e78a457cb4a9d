"""Distance of the trainer's log-probabilities from those that the engine recorded, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


class Limits(NamedTuple):
    """Masks over E trained tokens: where the importance correction was capped, and the policy's ratio clipped."""

    capped_E: Tensor
    clipped_E: Tensor

    def fractions(self) -> dict[str, float]:
        return {
            "importance_capped_fraction": float(self.capped_E.double().mean()),
            "clip_fraction": float(self.clipped_E.double().mean()),
        }


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Parallel over E trained tokens: the trainer's log-probability less the engine's, and whose weights sampled it.

    `difference_E` is float32 and `version_E` an integer, the weights version that the engine recorded. `limits` are of
    tokens in a loss, and None of others.
    """

    difference_E: Tensor
    version_E: Tensor
    limits: Limits | None = None

    @classmethod
    def join(cls, parts: Sequence[Mismatch]) -> Mismatch:
        """All parts as one, on the CPU."""
        limits = [part.limits for part in parts if part.limits is not None]
        return cls(
            torch.cat([part.difference_E for part in parts]).cpu(),
            torch.cat([part.version_E for part in parts]).cpu(),
            Limits(*(torch.cat(masks).cpu() for masks in zip(*limits, strict=True))) if limits else None,
        )

    @property
    def n_tokens(self) -> int:
        return len(self.difference_E)

    @property
    def mean(self) -> float:
        """The mean absolute difference."""
        return float(np.abs(self._differences).mean())

    @property
    def kl(self) -> float:
        """KL(engine || trainer) by the estimator k3, exp(d) - 1 - d: never negative, unbiased, low variance."""
        return float((np.expm1(self._differences) - self._differences).mean())

    @property
    def kl_k1(self) -> float:
        """The same by k1, the signed mean of engine less trainer: a common shift shows in it, scatter cancels out."""
        return -float(self._differences.mean())

    def quantiles(self) -> dict[str, float]:
        """Exact quantiles of the absolute difference, `p50` to `p999` and `max`."""
        values = np.quantile(np.abs(self._differences), list(QUANTILES.values()))
        return dict(zip(QUANTILES, values.tolist(), strict=True))

    def by_version(self) -> dict[int, Mismatch]:
        """The tokens of each weights version, oldest first."""
        return {version: self._where(self.version_E == version) for version in self.version_E.unique().tolist()}

    def _where(self, chosen_E: Tensor) -> Mismatch:
        limits = None if self.limits is None else Limits(*(mask_E[chosen_E] for mask_E in self.limits))
        return Mismatch(self.difference_E[chosen_E], self.version_E[chosen_E], limits)

    def metrics(self) -> dict[str, float]:
        """The same numbers as those of a step, or of a weights version in it."""
        return {
            "logprob_diff_mean": self.mean,
            **{f"logprob_diff_{name}": value for name, value in self.quantiles().items()},
            "engine_kl": self.kl,
            "engine_kl_k1": self.kl_k1,
            **(self.limits.fractions() if self.limits is not None else {}),
        }

    def metrics_by_age(self, version: int) -> dict[str, float]:
        """Metrics of the tokens sampled 0, 1, ... versions before `version`, the one that is trained.

            version 7, tokens of 7 and of 5   ->   versions_behind_0/tokens, versions_behind_2/tokens, ...

        Counted back from `version`, names stay the same from step to step.
        """
        oldest = version - int(self.version_E.min())
        metrics = {"versions_behind_max": float(oldest)}
        for sampled_by, part in self.by_version().items():
            group = f"versions_behind_{version - sampled_by}"
            metrics[f"{group}/tokens"] = float(part.n_tokens)
            metrics |= {f"{group}/{name}": value for name, value in part.metrics().items()}
        return metrics

    @property
    def _differences(self) -> np.ndarray:
        """Compute in float64, where exp of a difference of hundreds is still finite."""
        return self.difference_E.double().numpy()
