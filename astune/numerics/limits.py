"""Limits on the difference of engine and trainer, beyond which rounding cannot be the cause."""

from __future__ import annotations

from dataclasses import dataclass, replace

from astune.trainer.mismatch import Mismatch


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds: of the mean absolute difference, of its 99 % quantile, and of the KL divergence (k3).

    `evidence` is that of `Draws.evidence` above which draws count as biased: at most one false alarm in a million
    steps.
    """

    mean: float
    p99: float
    kl: float
    evidence: float = 6.0

    def at_logits_times(self, scale: float) -> Limits:
        """The limits for logits, and so for rounding, that are `scale` times as large."""
        return replace(self, mean=self.mean * scale, p99=self.p99 * scale, kl=self.kl * scale**2)

    def exceeded_by(self, mismatch: Mismatch) -> dict[str, tuple[float, float]]:
        """The measures that are beyond their limit, each with its value and the limit."""
        measured = {
            "mean difference": (mismatch.mean, self.mean),
            "p99": (mismatch.quantiles()["p99"], self.p99),
            "KL": (mismatch.kl, self.kl),
        }
        return {name: pair for name, pair in measured.items() if not pair[0] <= pair[1]}


FLOAT32 = Limits(mean=5e-5, p99=3e-4, kl=1e-8)
"""The limits of float32 on both sides: ten times what SmolLM2-135M shows on the calculator's rollouts (mean 5.3e-6,
p99 2.6e-5, KL 3e-11; CPU, 1,000 tokens a step). With bfloat16 on one side the mean is 600 times the limit."""

MEAN, P99, KL = 1.5, 2.0, 3.0
"""Factors above what rounding explains, in a narrower format. Rounding is measured on the same tokens, by the trainer
itself in its own format and in float32: models, prompts and steps differ by more than one number allows. In eight steps
in bfloat16 (three seeds of the calculator, one at temperature 0.7, and the frozen lake) the mean was 0.69 to 0.96 times
what rounding explains (0.035 to 0.065), p99 0.78 to 1.15 times, KL 0.62 to 1.08 times. An engine that rounds 1.8 times
as much as the trainer stays within 1.5: sqrt(1 + 1.8^2) is 1.46 times sqrt(2)."""


def rounding_limits(rounding: Mismatch) -> Limits:
    """The limits where one side's rounding is `rounding`, and the other's is as large and independent.

    Differences of two independent errors are sqrt(2) of one, and the KL divergence, which goes with squares, is twice.
    """
    both = 2**0.5
    return Limits(MEAN * both * rounding.mean, P99 * both * rounding.quantiles()["p99"], KL * 2 * rounding.kl)
