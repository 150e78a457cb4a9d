"""The report of an update: the metrics of one step of any trainer, under the names that all backbones share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from astune.schema import TrainingBatch
from astune.trainer.loss import LossSums
from astune.trainer.mismatch import Mismatch
from astune.trainer.own_logprobs import OwnLogprobs, engine_correlation
from astune.trainer.rows import row_metrics
from astune.trainer.samples import account


@dataclass(frozen=True, slots=True)
class StepReport:
    """Report of one step. `trained_tokens` and the metric `masked_fraction` account for every sampled token."""

    metrics: dict[str, float]
    trained_tokens: int
    mismatch: Mismatch
    logprobs: OwnLogprobs
    """The trainer's, of every trained token, under the weights that the step began with."""

    @classmethod
    def of(cls, batch: TrainingBatch, sums: LossSums, logprobs: OwnLogprobs, *, version: int, **more: float) -> Self:
        """The report of an update on `batch`.

        Args:
            version: of the weights that were updated.
            more: what only the trainer knows, as its gradient norm; replaces a common metric of the same name.
                `read_tokens` is among it, and `computed_tokens` of a trainer that computes shared tokens once.
        """
        accounts, mismatch = account(batch), sums.mismatch
        metrics = {
            **sums.metrics(),
            **version_metrics(batch, mismatch, logprobs, version),
            "masked_fraction": accounts.masked_fraction,
            "trained_tokens": float(accounts.trained),
            **row_metrics(batch, more.get("computed_tokens", more["read_tokens"])),
            **{name: float(value) for name, value in more.items()},
        }
        return cls(metrics, accounts.trained, mismatch, logprobs)


def version_metrics(batch: TrainingBatch, mismatch: Mismatch, logprobs: OwnLogprobs, version: int) -> dict[str, float]:
    """The version that is trained, and where an engine sampled the answers, the distance from it."""
    metrics = {"weights_version": float(version)}
    if all(episode.given for group in batch.groups for episode in group.episodes):
        return metrics
    metrics |= mismatch.metrics() | mismatch.metrics_by_age(version)
    correlation = engine_correlation(batch.groups, logprobs, version)
    return metrics if correlation is None else {**metrics, "engine_correlation": correlation}
