"""Margins of pairs: how much more than the starting model the policy prefers the chosen answer to the rejected one.

A margin is a sum over both answers, which may be in two micro-batches. A pass over all of them finds it before the pass
that has a gradient; the loss is then a sum over tokens, however they are packed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from astune.schema import TrainerError
from astune.trainer.microbatch import MicroBatch


def add_margins(microbatches: Sequence[MicroBatch], logprobs: Callable[[MicroBatch], Tensor]) -> list[float]:
    """Note the margin of each token's pair in the inputs of micro-batches, which have `reference_logprob_E`.

        log policy - log start of tokens    chosen 0.5 1.0    rejected -0.5 -0.25 0.25    ->   margin 2, 5 tokens

    Args:
        logprobs: the policy's present log-probabilities [E] of a micro-batch.

    Returns:
        the margin of each pair, in nats.
    """
    margins, counts = defaultdict[int, float](float), defaultdict[int, int](int)
    for microbatch in microbatches:
        start_E = microbatch.inputs.reference_logprob_E
        if start_E is None:
            raise TrainerError("the starting weights were not kept", hint="this is a defect of astune")
        moved_E = (logprobs(microbatch) - start_E).cpu().double() * microbatch.inputs.advantage_E.cpu().sign()
        for pair, moved in zip(_pairs(microbatch), moved_E.tolist(), strict=True):
            margins[pair] += moved
            counts[pair] += 1
    for microbatch in microbatches:
        margin_E = torch.tensor([margins[pair] for pair in _pairs(microbatch)])
        n_tokens_E = torch.tensor([float(counts[pair]) for pair in _pairs(microbatch)])
        like = microbatch.inputs.weight_E
        microbatch.inputs = replace(microbatch.inputs, margin_E=margin_E.to(like), pair_tokens_E=n_tokens_E.to(like))
    return [*margins.values()]


def margin_metrics(margins: Sequence[float]) -> dict[str, float]:
    """Return `chosen_preferred`, the part of a step's pairs with a margin above 0, and `margin_mean`, in nats."""
    if not margins:
        return {}
    return {"chosen_preferred": fmean(margin > 0 for margin in margins), "margin_mean": fmean(margins)}


def _pairs(microbatch: MicroBatch) -> list[int]:
    """The group of each of the micro-batch's trained tokens."""
    return [microbatch.timelines[number].group for number in microbatch.inputs.sequence_E.tolist()]
