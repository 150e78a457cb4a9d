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


def by_message(logprob_E: Tensor, microbatches: Sequence[MicroBatch]) -> OwnLogprobs:
    """Sort log-probabilities by episode and message.

    Args:
        logprob_E: those of the trained tokens of all micro-batches one after another.
    """
    found: OwnLogprobs = {}
    sizes = [len(microbatch.order_E) for microbatch in microbatches]
    for microbatch, own_E in zip(microbatches, logprob_E.split(sizes), strict=True):
        for timeline, values in zip(microbatch.timelines, microbatch.by_timeline(own_E), strict=True):
            messages = found.setdefault(timeline.episode_id, {})
            parts = values.split([n_tokens for _, n_tokens in timeline.messages])
            messages |= {node_id: part.numpy() for (node_id, _), part in zip(timeline.messages, parts, strict=True)}
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
