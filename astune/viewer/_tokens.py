"""The tokens of one timeline as columns: what each is, reads as, and what is known of it."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astune.runs import EpisodeRow
from astune.schema import Episode, Span, Timeline, Vocabulary
from astune.viewer._answers import Refusal
from astune.viewer._episode import advantages_by_node, left_out
from astune.viewer._revision import tokens_revision

Floats = NDArray[np.float32]


def read_tokens(
    episode: Episode,
    row: EpisodeRow,
    number: int,
    vocabulary: Vocabulary | None,
    trainer_logprobs: Floats | None,
) -> dict[str, Any]:
    """All tokens of timeline `number`. Raises Refusal if there is no such timeline.

    Args:
        trainer_logprobs: [n_sampled] of the whole episode, as the store has them.
    """
    n_timelines = len(episode.forest.leaves())
    if number >= n_timelines:
        raise Refusal(404, f"the episode has {n_timelines} timelines, there is no number {number}")
    timeline = episode.forest.timeline(number, episode.constrained_tokens, left_out(episode, row.advantages))
    sampled = [span for span in timeline.spans if span.sampled]
    known = advantages_by_node(episode, row.advantages)
    return {
        "revision": tokens_revision(row, trainer_logprobs is not None),
        "length": len(timeline.token_ids),
        "ids": timeline.token_ids,
        **_reading(timeline.token_ids, vocabulary),
        "spans": [
            {
                "start": span.start,
                "end": span.end,
                "node": span.node_id,
                "role": span.role,
                "agent": span.agent,
                "sampled": span.sampled,
                "mask_reason": (row.untrained or span.mask_reason) if span.sampled else None,
                "weights_version": span.weights_version,
            }
            for span in timeline.spans
        ],
        "loss": _with_loss(timeline) if row.untrained is None else [],
        "logprobs": np.concatenate([_none(), *(_engines(episode, timeline, span) for span in sampled)]),
        "trainer_logprobs": _trainers(episode, timeline, trainer_logprobs),
        "advantages": [known.get(span.node_id) for span in sampled] if known else None,
        "grammar": [span.constraint is not None for span in timeline.spans],
    }


def character_runs(token_ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[tuple[int, int, str]]:
    """Runs `[start, end)` of tokens that are parts of characters, and the characters that they make together.

    F0 9F | 98 80     gives  (0, 2, the face U+1F600)
    F0 9F | "so"      gives  (0, 1, U+FFFD)      what was begun does not go on
    """
    part = {token: piece for token in set(token_ids) if not _is_text(piece := vocabulary.piece(token))}
    position = 0
    while position < len(token_ids):
        if token_ids[position] not in part:
            position += 1
            continue
        start, text, decoder = position, "", codecs.getincrementaldecoder("utf-8")("replace")
        while position < len(token_ids) and (piece := part.get(token_ids[position])) is not None:
            text += decoder.decode(piece)
            position += 1
            if not decoder.getstate()[0]:
                break
        yield start, position, text + decoder.decode(b"", final=True)


def _reading(token_ids: Sequence[int], vocabulary: Vocabulary | None) -> dict[str, Any]:
    """Without a vocabulary, tokens read as their ids."""
    if vocabulary is None:
        return {"texts": {token: f"{token} " for token in set(token_ids)}, "bytes": {}, "characters": []}
    pieces = {token: vocabulary.piece(token) for token in set(token_ids)}
    return {
        "texts": {token: piece.decode("utf-8", "replace") for token, piece in pieces.items()},
        "bytes": {token: piece.hex() for token, piece in pieces.items() if not _is_text(piece)},
        "characters": list(character_runs(token_ids, vocabulary)),
    }


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_loss(timeline: Timeline) -> list[tuple[int, int]]:
    """Neighbouring spans joined."""
    runs: list[tuple[int, int]] = []
    for span in timeline.spans:
        if span.sampled and span.mask_reason is None:
            joined = runs.pop()[0] if runs and runs[-1][1] == span.start else span.start
            runs.append((joined, span.end))
    return runs


def _trainers(episode: Episode, timeline: Timeline, logprobs: Floats | None) -> Floats | None:
    """The trainer's log-probabilities of the timeline's sampled tokens, in order."""
    if logprobs is None:
        return None
    of_node: dict[int, Floats] = {}
    for node in episode.forest.nodes:
        if node.sampled:
            of_node[node.node_id], logprobs = logprobs[: node.n_sampled], logprobs[node.n_sampled :]
    return np.concatenate([_none(), *(of_node[span.node_id] for span in timeline.spans if span.sampled)])


def _engines(episode: Episode, timeline: Timeline, span: Span) -> Floats:
    """Round to float32, as engines compute, which halves the digits; NaN for answers that no engine sampled."""
    values = timeline.logprobs[span.start : span.end]
    return np.asarray([math.nan] * len(values) if episode.given else values, np.float32)


def _none() -> Floats:
    return np.empty(0, np.float32)
