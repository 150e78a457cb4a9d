"""Causes of a difference between engine and trainer: each is tried by recomputing the recorded tokens under it.

A suspect that brings the differences below the limit is the cause. The look of a difference proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from astune.numerics.calls import RecordedCall
from astune.numerics.draws import CUTS, Draws, kept_by
from astune.numerics.limits import MEAN, P99, Limits
from astune.numerics.prompts import OtherPrompts
from astune.numerics.reading import Reading
from astune.trainer.microbatch import MicroBatch
from astune.trainer.mismatch import Mismatch
from astune.trainer.policy import PolicyTrainer
from astune.trainer.policy_model import PolicyModel

FITTED_TOKENS = 32
"""Tokens that a temperature is fitted on; two already determine it, more average out rounding."""
OUTSIDE = 0.005
"""The part of the tokens that rounding may put outside a cut-off that the engine drew them from."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Trial:
    """An assumption about the engine, and the measure under it.

    `measure` names it: the mean absolute difference, or the evidence against honest draws; less is better.
    """

    cause: str
    assumption: str
    hint: str
    measure: str
    before: float
    after: float
    explains: bool


@dataclass
class Suspects:
    """The suspects of one step, whose calls should have been sampled with the weights that `policy` still has.

    Args:
        version: the weights version that they should have been sampled with.
        earlier: the version before it and the first one, with their weights.
    """

    policy: PolicyTrainer
    calls: Sequence[RecordedCall]
    _: KW_ONLY
    version: int
    earlier: Sequence[tuple[int, PolicyModel]]
    limits: Limits
    temperature: float
    folder: Path

    def __post_init__(self) -> None:
        self._model = self.policy.model
        self._head = self._model.head(self.temperature)
        self._reading = self._read(self._model, self.calls)
        self._before = self._reading.mismatch(self._head)

    def of_the_differences(self) -> Iterator[Trial]:
        """Try what makes recorded log-probabilities others than the trainer's."""
        yield from self._temperatures()
        yield from self._cuts()
        yield from self._stale_weights()
        yield from self._heads()
        yield from self._prompts()
        yield self._other_dtype()

    def of_the_draws(self) -> Iterator[Trial]:
        """Try what makes tokens come from other distributions than those recorded."""
        draws = Draws.of(self._reading, self._head)
        before = draws.evidence()

        def trial(cause: str, assumption: str, hint: str, after: float) -> Trial:
            return Trial(
                cause, assumption, hint, "evidence against the draws", before, after, after <= self.limits.evidence
            )

        for kind, place_E in (("top_p", draws.above_E), ("top_k", draws.rank_E.float())):
            cut = next((cut for cut in CUTS if cut.kind == kind and _outside(place_E, cut.value) <= OUTSIDE), None)
            if cut is not None:
                kept_E = kept_by([cut], self._reading, self._head)[:, 0]
                yield trial(
                    kind,
                    f"tokens were drawn with {cut} and recorded with the probabilities before the cut",
                    f"sample with {kind} {1 if kind == 'top_p' else 0}: what is cut off is never trained",
                    draws.evidence(kept_E),
                )
        temperature = self._likeliest_temperature()
        yield trial(
            "temperature",
            f"tokens were drawn at temperature {temperature:.3g} and recorded with the probabilities at "
            f"{self.temperature:g}",
            "record log-probabilities of the distribution that is sampled from",
            Draws.of(self._reading, replace(self._head, temperature=temperature)).evidence(),
        )

    def _temperatures(self) -> Iterator[Trial]:
        """No temperature, as many engines record by default, then the best one in round numbers, then the best."""
        fitted = self._fitted_temperature()
        for temperature in dict.fromkeys([1.0, round(fitted, 2), fitted]):
            if temperature == self.temperature:
                continue
            trial = self._trial(
                "temperature",
                f"the recorded probabilities are those at temperature {temperature:.4g}, rollout.temperature is "
                f"{self.temperature:g}",
                "record log-probabilities after the temperature is applied, and sample with rollout.temperature",
                self._reading.mismatch(replace(self._head, temperature=temperature)),
                limits=self.limits.at_logits_times(max(1.0, self.temperature / temperature)),
            )
            yield trial
            if trial.explains:
                return

    def _cuts(self) -> Iterator[Trial]:
        """Tails cut off, and the rest scaled up before it was recorded."""
        kept_EC = kept_by(CUTS, self._reading, self._head).log()
        error_C = (self._before.difference_E[:, None] - kept_EC).abs().mean(dim=0)
        for kind in ("top_p", "top_k"):
            best = min((column for column, cut in enumerate(CUTS) if cut.kind == kind), key=lambda c: float(error_C[c]))
            yield self._trial(
                kind,
                f"the recorded probabilities are those after a cut at {CUTS[best]}",
                f"sample with {kind} {1 if kind == 'top_p' else 0}, or record the probabilities before the cut",
                Mismatch(self._before.difference_E - kept_EC[:, best], self._before.version_E),
            )

    def _stale_weights(self) -> Iterator[Trial]:
        for version, model in self.earlier:
            yield self._trial(
                "stale weights",
                f"tokens were sampled with weights version {version} after {self.version} was handed over",
                "the engine has to take every tensor of load_weights, and forget cached keys and values, before it "
                "samples again",
                self._read(model, self.calls).mismatch(model.head(self.temperature)),
            )

    def _heads(self) -> Iterator[Trial]:
        for name, weight_VD in self._other_heads():
            yield self._trial(
                "head",
                f"the engine's output head is {name}",
                "where the model's config ties the head to the embeddings, new weights for one must reach the other",
                self._reading.mismatch(replace(self._head, weight_VD=weight_VD)),
            )

    def _other_heads(self) -> Iterator[tuple[str, Tensor]]:
        own = self._head.weight_VD
        for version, model in self.earlier:
            yield f"that of weights version {version}, below newer layers", model.head(1.0).weight_VD
        embeddings = self._model.causal_lm.get_input_embeddings().weight
        if embeddings.shape == own.shape and embeddings.data_ptr() != own.data_ptr():
            yield "its embeddings, where the model's files have a head of its own", embeddings.to(own.dtype)

    def _prompts(self) -> Iterator[Trial]:
        text_config = self._model.causal_lm.config.get_text_config()
        others = OtherPrompts(self.folder, getattr(text_config, "bos_token_id", None))
        variants = [others.variants(call) for call in self.calls]
        for name in dict.fromkeys(name for named in variants for name in named):
            calls = [
                replace(call, prompt_ids=named.get(name, call.prompt_ids))
                for call, named in zip(self.calls, variants, strict=True)
            ]
            yield self._trial(
                "template",
                f"the engine reads the prompt {name}",
                "the engine must be given token ids and read exactly these: no chat template, no special tokens added",
                self._read(self._model, calls).mismatch(self._head),
            )

    def _other_dtype(self) -> Trial:
        """Rounding cannot be reproduced: two sides that round alike differ more than one differs from the exact value.
        So the engine's differences are compared with the effect of that rounding on the trainer.
        """
        own = self._model.dtype
        other = torch.bfloat16 if own == torch.float32 else torch.float32
        rounding = rounding_of(self._model, other, self._reading.microbatches, self.temperature)
        sizes = (
            (self._before.mean, rounding.mean, MEAN),
            (self._before.quantiles()["p99"], rounding.quantiles()["p99"], P99),
        )
        return Trial(
            "dtype",
            f"the engine computes in {name_of(other)}, the trainer in {name_of(own)}: that alone moves the trainer's "
            f"own log-probabilities by {rounding.mean:.2g}",
            "let both compute in the same format: model.dtype",
            "mean difference",
            self._before.mean,
            abs(self._before.mean - rounding.mean),
            explains=all(found / alike < expected < found * alike for found, expected, alike in sizes),
        )

    def _trial(self, cause: str, assumption: str, hint: str, after: Mismatch, *, limits: Limits | None = None) -> Trial:
        explains = not (limits or self.limits).exceeded_by(after) and after.mean < self._before.mean / 2
        return Trial(cause, assumption, hint, "mean difference", self._before.mean, after.mean, explains)

    def _read(self, model: PolicyModel, calls: Sequence[RecordedCall]) -> Reading:
        return Reading.of(model, self.policy.packed([call.timeline() for call in calls]))

    def _fitted_temperature(self) -> float:
        """The temperature at which the trainer's log-probabilities are nearest to the recorded ones."""
        logprob_NV, token_N = self._some_distributions()
        engine_N = self._reading.engine_logprobs[: len(token_N)].double()

        def error(temperature: float) -> float:
            return float((_at(logprob_NV, token_N, self.temperature / temperature) - engine_N).abs().mean())

        return _minimum(error)

    def _likeliest_temperature(self) -> float:
        """The temperature at which the tokens that were drawn have the highest probability."""
        logprob_NV, token_N = self._some_distributions()
        return _minimum(lambda temperature: -float(_at(logprob_NV, token_N, self.temperature / temperature).mean()))

    def _some_distributions(self) -> tuple[Tensor, Tensor]:
        """The first tokens' distributions [N, V] as log-probabilities in float64, and the tokens [N]."""
        rows: list[Tensor] = []
        tokens: list[Tensor] = []
        for logprob_BV, token_B in self._reading.distributions(self._head):
            rows.append(logprob_BV.cpu().double())
            tokens.append(token_B.cpu())
            if sum(map(len, tokens)) >= FITTED_TOKENS:
                break
        return torch.cat(rows), torch.cat(tokens)


def _at(logprob_NV: Tensor, token_N: Tensor, scale: float) -> Tensor:
    """Log-probabilities [N] of tokens after the distributions' logits are multiplied by `scale`."""
    scaled_NV = logprob_NV * scale
    return scaled_NV.gather(1, token_N[:, None])[:, 0] - scaled_NV.logsumexp(dim=1)


def _minimum(function: Callable[[float], float]) -> float:
    """The temperature from 0.1 to 10 where a function is least: a grid, then golden sections around its best point."""
    grid = [10 ** (step / 10 - 1) for step in range(21)]
    best = min(range(1, len(grid) - 1), key=lambda index: function(grid[index]))
    low, high = grid[best - 1], grid[best + 1]
    while high - low > 1e-6 * high:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


def _outside(place_E: Tensor, bound: float) -> float:
    return float((place_E >= bound).float().mean())


def rounding_of(
    model: PolicyModel, other: torch.dtype, microbatches: Sequence[MicroBatch], temperature: float
) -> Mismatch:
    """Log-probabilities of recorded tokens, less those of the same weights when they compute in `other`."""
    there = model.frozen(other)
    own, others = Reading.of(model, microbatches), Reading.of(there, microbatches)
    return Mismatch(own.logprobs(model.head(temperature)) - others.logprobs(there.head(temperature)), own.versions)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
