"""The trainer's own log-probabilities, by message, for the record of a step.

A step computes them for its loss in the order of its micro-batches. Nothing is computed again here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from astune.schema import Episode, EpisodeGroup

if TYPE_CHECKING:
    from torch import Tensor

    from astune.trainer.microbatch import MicroBatch

Floats = NDArray[np.float32]
OwnLogprobs = dict[str, dict[int, Floats]]
"""Log-probabilities by episode and message, parallel to the message's sampled tokens."""


def by_message(logprobs: Sequence[Tensor], microbatches: Sequence[MicroBatch]) -> OwnLogprobs:
    """Sort log-probabilities by episode and message.

    Args:
        logprobs: those of the trained tokens of all micro-batches one after another, in parts.
    """
    found: OwnLogprobs = {}
    logprob_E = np.concatenate([part.cpu().numpy() for part in logprobs])
    start = 0
    for microbatch in microbatches:
        end = start + len(microbatch.order_E)
        own_E = np.empty(end - start, np.float32)
        own_E[microbatch.order_E] = logprob_E[start:end]
        start, taken = end, 0
        for timeline in microbatch.timelines:
            messages = found.setdefault(timeline.episode_id, {})
            for node_id, n_tokens in timeline.messages:
                messages[node_id] = own_E[taken : taken + n_tokens]
                taken += n_tokens
    return found


def of_sampled(episode: Episode, messages: Mapping[int, Floats]) -> Floats:
    """[n_sampled], node after node as recorded; NaN for messages that were not trained."""
    parts = [
        messages.get(node.node_id, np.full(node.n_sampled, np.nan, np.float32))
        for node in episode.forest.nodes
        if node.sampled
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def engine_correlation(groups: Iterable[EpisodeGroup], logprobs: OwnLogprobs, version: int) -> float | None:
    """Pearson's correlation of the probabilities that engine and trainer give to the tokens that `version` sampled.

    1 where either does not vary; None where `version` sampled none of the trained tokens. Above 0.99 with the same
    weights on both sides.
    """
    trained = [
        (node.logprobs, messages[node.node_id])
        for group in groups
        for episode in group.episodes
        if (messages := logprobs.get(episode.episode_id))
        for node in episode.forest.nodes
        if node.node_id in messages and node.weights_version == version
    ]
    if not trained:
        return None
    engine, own = (np.exp(np.concatenate(parts).astype(np.float64)) for parts in zip(*trained, strict=True))
    if np.ptp(engine) == 0 or np.ptp(own) == 0:
        return 1.0
    return float(np.corrcoef(engine, own)[0, 1])
