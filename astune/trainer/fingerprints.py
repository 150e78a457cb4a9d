"""Fingerprints of a model's weights: its log-probabilities of a fixed text, and how far an engine may differ."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from astune.engine.fingerprint import Fingerprint
from astune.engine.tokenizer import ModelTokenizer
from astune.schema import TrainerError
from astune.trainer.microbatch import MicroBatch, pack
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import WeightedTimeline

TEXT = (
    "The bus leaves the old station at nine. It carries 23 people; at the first stop 7 of them get off, and 12 get on. "
    "How many are in it now? Let me think: 23 - 7 = 16, and 16 + 12 = 28. So the answer is 28.\n\n"
    "def mean(values):\n    return sum(values) / len(values)\n\n"
    '{"name": "search", "arguments": {"query": "weather in Paris", "limit": 3}}\n'
    "Dear Anna, thank you for your letter. We shall be glad to see you on Sunday, if it does not rain."
)
ROUNDING = 4.0
"""Factor above the trainer's own rounding in a narrow format by which an engine may differ. Two honest sides are
sqrt(2) of one rounding apart, which changes as the weights do: `numerics/limits.py` has seen it double and halve."""
FLOAT32 = 1e-3
"""The limit in float32, a thirtieth of what bfloat16 does."""
FAR = 2.0
"""Factor of the limits by which weights are moved to be distinguishable."""
FIRST_NOISE, LARGEST_NOISE = 0.1, 1.0
"""The noise that moves them, relative to a weight's size; doubled until it is enough."""


class Fingerprints:
    """Takes fingerprints. The limit is measured once, with the first of them, and costs a copy in float32 for a moment.

    Args:
        folder: the model's files, for its tokenizer.
        max_tokens: how much of the text a server can read.
    """

    def __init__(self, folder: Path, *, max_tokens: int) -> None:
        self._folder = folder
        self._max_tokens = max_tokens
        self._token_ids: list[int] = []
        self._limit: float | None = None

    def of(self, model: PolicyModel) -> Fingerprint:
        """Return the fingerprint of the present weights; no step may run meanwhile."""
        batch = self._text(model.device)
        logprob_E = model.logprobs(batch, 1.0).cpu()
        if self._limit is None and model.dtype == torch.float32:
            self._limit = FLOAT32
        elif self._limit is None:
            exact_E = model.frozen(torch.float32).logprobs(batch, 1.0).cpu()
            self._limit = ROUNDING * float((exact_E - logprob_E).abs().mean())
        return Fingerprint(self._token_ids, logprob_E.tolist(), self._limit)

    def far_from(self, model: PolicyModel) -> PolicyModel:
        """A copy with weights moved by noise until its log-probabilities differ clearly from `model`'s, and from those
        of a mixture: the head of one on the layers of the other.

        Raises:
            TrainerError: no noise moves it.
        """
        limit = self.of(model).limit
        batch = self._text(model.device)
        noise = FIRST_NOISE
        while noise <= LARGEST_NOISE:
            moved = model.frozen()
            _shake(moved.module, noise)
            if min(_distances(moved, model, batch)) > FAR * limit:
                return moved
            noise *= 2
        raise TrainerError(
            "noise in the weights does not change the model's outputs: whether an engine gets them cannot be seen",
            hint="this is a defect of astune, please report it with the model",
        )

    def _text(self, device: torch.device) -> MicroBatch:
        if not self._token_ids:
            self._token_ids = ModelTokenizer.load(self._folder).encode(TEXT)[: self._max_tokens]
        first, rest = self._token_ids[:1], self._token_ids[1:]
        return pack([WeightedTimeline.unweighted(first, rest, [0.0] * len(rest))], device)


@torch.no_grad()
def _shake(module: nn.Module, noise: float) -> None:
    random = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        size = float(parameter.float().square().mean().sqrt()) or 1.0
        shift = torch.randn(parameter.shape, generator=random) * (noise * size)
        parameter.add_(shift.to(parameter.device, parameter.dtype))


@torch.no_grad()
def _distances(moved: PolicyModel, model: PolicyModel, batch: MicroBatch) -> list[float]:
    """Return the differences between `moved` and `model`, and between each one's head on the other's layers."""
    hidden, moved_hidden = model.hidden(batch), moved.hidden(batch)
    head, moved_head = model.head(1.0), moved.head(1.0)
    moved_E = moved_head.logprobs(moved_hidden, batch.targets)
    others = (head.logprobs(hidden, batch.targets), head.logprobs(moved_hidden, batch.targets))
    mixed_E = moved_head.logprobs(hidden, batch.targets)
    return [float((moved_E - other_E).abs().mean()) for other_E in (*others, mixed_E)]
