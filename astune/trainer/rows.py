"""Rows of a batch: the timelines that are trained, and what they cost beside what their episodes recorded.

An agent that rewrites its history makes several rows of an episode, which repeat what they share.

    S U1 [A1] U2 [A2]    and    S U1* [A3]    2 rows; the tokens of S are recorded once and read twice

The prefix tree forwards what rows share once; a trainer without it forwards every row as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from astune.schema import Timeline, TrainingBatch


def row_metrics(batch: TrainingBatch, forwarded_tokens: float) -> dict[str, float]:
    """Return the rows per episode, and the tokens forwarded over those that the rows' episodes recorded.

    Empty where nothing is trained.
    """
    episodes = [each.timelines for group in batch.groups for each in group.episodes]
    rows = [trained for timelines in episodes if (trained := [one for one in timelines if one.n_trained])]
    if not rows:
        return {}
    unique = sum(map(unique_tokens, rows))
    return {
        "rows_per_episode": sum(map(len, rows)) / len(rows),
        "forwarded_over_unique": forwarded_tokens / unique,
    }


def unique_tokens(rows: Iterable[Timeline]) -> int:
    """Tokens that a forward pass over an episode's rows reads, each message once: what predicts a trained token."""
    read: dict[tuple[int, bool], int] = {}
    for row in rows:
        last = max(span.end for span in row.spans if span.sampled and span.mask_reason is None) - 1
        for span in row.spans:
            part = span.node_id, span.sampled
            read[part] = max(read.get(part, 0), min(span.end, last) - span.start)
    return sum(n for n in read.values() if n > 0)
