"""Revision of the data written to an episode: unchanged responses need not be fetched again.

An episode itself never changes. Its advantages, why it was not trained and the trainer's log-probabilities are written
later, its group fills, and a step that is run again replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from astune.runs import EpisodeReader, EpisodeRow

_MAX_GROUP = 10_000


def revisions(reader: EpisodeReader, row: EpisodeRow) -> dict[str, str]:
    """Revisions of what is answered about an episode now, and about its tokens."""
    knows_trainer = reader.trainer_logprobs(row.episode_id) is not None
    return {"episode": episode_revision(row, group_of(reader, row)), "tokens": tokens_revision(row, knows_trainer)}


def episode_revision(row: EpisodeRow, group: Sequence[EpisodeRow]) -> str:
    return _name_of((row, *group))


def tokens_revision(row: EpisodeRow, knows_trainer: bool) -> str:
    """`knows_trainer` says whether the trainer's log-probabilities were recorded."""
    return _name_of((row, knows_trainer))


def group_of(reader: EpisodeReader, row: EpisodeRow) -> list[EpisodeRow]:
    """Every attempt at the episode's task in its step, its own too."""
    return reader.list(split=row.split, step=row.step, task_id=row.task_id, limit=_MAX_GROUP)


def _name_of(known: object) -> str:
    return blake2b(repr(known).encode(), digest_size=8).hexdigest()
