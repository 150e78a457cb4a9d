"""The policy loss, defined once: a weighted sum over trained tokens, however they were computed (law 4).

The loss of a token is the algorithm's. The parts shared by all algorithms are added here: the correction for what the
engine sampled with, the KL term and the entropy bonus.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from astune.algorithm import Algorithm, Preference, Tokens
from astune.algorithm.base import loss_of
from astune.config.schema import LossConfig
from astune.trainer.mismatch import Limits, Mismatch

LARGEST_LOG_RATIO = 10.0
"""The largest log ratio of starting weights to policy that the KL term counts: 22,000 times as likely."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Constants of E trained tokens, independent of the present policy; parallel tensors.

    All are float32 but `version_E`, the weights version that sampled each token, and `sequence_E`, the number of its
    timeline. `old_logprob_E` are the trainer's own log-probabilities before the step's first update, None where this is
    the first; `reference_logprob_E` those of the starting weights, None without a KL term. `mean_log_ratio_E` is None
    where the algorithm does not ask for it: see `with_sequence_ratios`. `margin_E` and `pair_tokens_E` are None where
    it does not learn from preferences: see `astune.trainer.preferences`.
    """

    advantage_E: Tensor
    weight_E: Tensor
    engine_logprob_E: Tensor
    version_E: Tensor
    sequence_E: Tensor
    old_logprob_E: Tensor | None = None
    reference_logprob_E: Tensor | None = None
    mean_log_ratio_E: Tensor | None = None
    margin_E: Tensor | None = None
    pair_tokens_E: Tensor | None = None

    @property
    def preference(self) -> Preference | None:
        if self.margin_E is None or self.pair_tokens_E is None:
            return None
        return Preference(self.margin_E, self.pair_tokens_E)

    def select(self, where: slice) -> LossInputs:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return LossInputs(**{name: value[where] for name, value in values.items() if value is not None})

    def with_sequence_ratios(self, logprob_E: Tensor) -> LossInputs:
        """The same with the mean log ratio of each token's timeline, all of whose trained tokens have to be here.

            timeline   0     0     1              log ratio 0.02 0.04 -0.01
            mean       0.03  0.03  -0.01

        Args:
            logprob_E: the policy's present log-probabilities.
        """
        if self.old_logprob_E is None:
            return replace(self, mean_log_ratio_E=torch.zeros_like(logprob_E))
        log_ratio_E = (logprob_E - self.old_logprob_E).detach()
        _, number_E, count_S = self.sequence_E.unique(return_inverse=True, return_counts=True)
        sum_S = torch.zeros_like(count_S, dtype=log_ratio_E.dtype).index_add_(0, number_E, log_ratio_E)
        return replace(self, mean_log_ratio_E=(sum_S / count_S)[number_E])


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of trained tokens.

    loss = sum of weight * (importance * the algorithm's loss + kl_coef * KL - entropy_coef * entropy)
    importance = min(old policy / engine, importance_cap): the engine sampled, with other arithmetic; not trained, and 1
                 for answers that were given, which no engine sampled
    KL         = exp(d) - d - 1 with d = log start - log policy: see `kl_to_start`
    """

    algorithm: Algorithm
    terms: LossConfig

    def __call__(self, logprob_E: Tensor, entropy_E: Tensor, inputs: LossInputs) -> tuple[Tensor, LossSums]:
        """The loss of E tokens, with a gradient, and what the metrics are made of.

        Args:
            logprob_E: the policy's log-probability of each trained token, with the sampling temperature.
            entropy_E: the policy's entropy at each trained token.
        """
        terms = self.terms
        old_E = inputs.old_logprob_E if inputs.old_logprob_E is not None else logprob_E.detach()
        of_tokens = Tokens(logprob_E, old_E, inputs.advantage_E, inputs.mean_log_ratio_E, inputs.preference)
        algorithm_loss_E, clipped_E = loss_of(self.algorithm, of_tokens)
        given = self.algorithm.learns_from != "rollouts"
        engine_E = old_E if given else inputs.engine_logprob_E
        correction_E = (old_E - engine_E).exp()
        importance_E, capped_E = torch.ones_like(correction_E), torch.zeros_like(correction_E, dtype=torch.bool)
        if terms.importance_cap is not None:
            importance_E = correction_E.clamp(max=terms.importance_cap)
            capped_E = importance_E < correction_E
        token_loss_E = importance_E * algorithm_loss_E - terms.entropy_coef * entropy_E
        kl_E = torch.zeros_like(logprob_E)
        if inputs.reference_logprob_E is not None:
            kl_E = kl_to_start(logprob_E, inputs.reference_logprob_E)
            token_loss_E = token_loss_E + terms.kl_coef * kl_E
        loss = (inputs.weight_E * token_loss_E).sum()
        with torch.no_grad():
            limits = Limits(capped_E, torch.zeros_like(capped_E) if clipped_E is None else clipped_E)
            sums = LossSums(
                n_tokens=logprob_E.numel(),
                sums=_exact(torch.stack([entropy_E.sum(), importance_E.sum(), kl_E.sum()])),
                loss=_exact(loss.detach()),
                mismatches=(Mismatch(old_E - engine_E, inputs.version_E, limits),),
                logprobs=(old_E.detach(),),
            )
        return loss, sums


def _exact(tensor: Tensor) -> Tensor:
    """Sum in float64, on devices that have it; those of Apple do not."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def kl_to_start(logprob: Tensor, reference_logprob: Tensor) -> Tensor:
    """The estimator k3 of the KL divergence to the starting weights, of each token: never negative, of low variance.

    For tokens sampled from the policy its value is that of KL(policy || start) without bias. Its gradient is another's:
    differentiated at the sampled tokens alone, it is that of KL(start || policy). Both are 0 only where the two agree.
    d ends at `LARGEST_LOG_RATIO`: a single token that the policy has all but given up would outweigh the batch.
    """
    log_ratio = (reference_logprob - logprob).clamp(max=LARGEST_LOG_RATIO)
    return log_ratio.expm1() - log_ratio


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums behind the metrics; additive over chunks and micro-batches."""

    n_tokens: int
    sums: Tensor
    loss: Tensor
    mismatches: tuple[Mismatch, ...] = ()
    """A part for each chunk, left where it was computed until it is asked for."""
    logprobs: tuple[Tensor, ...] = ()
    """The trained tokens' log-probabilities before the step's first update, a part for each chunk as well."""

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            self.n_tokens + other.n_tokens,
            self.sums + other.sums,
            self.loss + other.loss,
            self.mismatches + other.mismatches,
            self.logprobs + other.logprobs,
        )

    @property
    def own_logprobs(self) -> Tensor:
        """The log-probability of each trained token, on the CPU, in the order in which they were computed."""
        return torch.cat(self.logprobs).cpu()

    @property
    def mismatch(self) -> Mismatch:
        """The mismatch of every trained token with the engine."""
        return Mismatch.join(self.mismatches)

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens, each token counting the same."""
        names = ("entropy", "importance_mean", "kl_to_start")
        means = dict(zip(names, (self.sums / self.n_tokens).tolist(), strict=True))
        return {"loss": float(self.loss), **means}
