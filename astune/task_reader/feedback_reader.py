"""Tasks from what users asked, with the answers that they accepted or wrote themselves as references."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from astune.env_service.base import text_of
from astune.feedback.interaction import Interaction, digest_of
from astune.feedback.store import FeedbackStore, Opinion
from astune.schema import Message, Task, TaskReaderError
from astune.task_reader.reader import TaskReaderBase


@dataclass(frozen=True, slots=True)
class _Accepted:
    """An answer that somebody accepted or wrote, to what was asked in `messages`."""

    messages: list[Message]
    reference: str
    weight: float
    interaction: Interaction
    opinion: Opinion


class TaskReaderFeedback(TaskReaderBase):
    """Rated interactions of a store. A task is the conversation up to the last question; its reference, in
    `metadata.answer`, is the corrected answer where a user gave one, and else the answer that was rated well enough.

    Of several references to one question the one with the most weight is taken. What is held out is decided by session,
    so that no conversation is on both sides, and stays as it is when more feedback comes.
    """

    def training_tasks(self) -> list[Task]:
        return [task for task, held_out in self._tasks() if not held_out]

    def validation_tasks(self) -> list[Task]:
        return [task for task, held_out in self._tasks() if held_out]

    def _tasks(self) -> Iterator[tuple[Task, bool]]:
        config = self.config.feedback_tracing
        path = self.find(config.path, key="task_reader.feedback_tracing.path")
        best: dict[str, _Accepted] = {}
        store = FeedbackStore(path)
        try:
            for accepted in _accepted(store, config.min_rating):
                digest = digest_of([(m["role"], text_of(m)) for m in accepted.messages])
                if digest not in best or accepted.weight > best[digest].weight:
                    best[digest] = accepted
        finally:
            store.close()
        if not best:
            raise TaskReaderError(
                f"{path} holds no answer that is rated {config.min_rating:g} or better, and no corrected one",
                hint="`astune feedback show` counts what is there; lower task_reader.feedback_tracing.min_rating",
            )
        for digest, accepted in best.items():
            yield _task(digest, accepted), _share(accepted.interaction.session or digest) < config.held_out


def _accepted(store: FeedbackStore, min_rating: float) -> Iterator[_Accepted]:
    opinions = store.opinions()
    for interaction in store.interactions():
        opinion = opinions.get(interaction.interaction_id)
        if opinion is None:
            continue
        asked = [i for i, message in enumerate(interaction.messages) if message.get("role") == "user"]
        if not asked:
            continue
        reference = opinion.corrected_answer
        if reference is None and opinion.rating is not None and opinion.rating >= min_rating:
            reference = text_of(interaction.messages[-1])
        if reference:
            yield _Accepted(interaction.messages[: asked[-1] + 1], reference, opinion.weight, interaction, opinion)


def _task(digest: str, accepted: _Accepted) -> Task:
    of = accepted.interaction
    return Task(
        task_id=f"feedback-{digest[:16]}",
        main_query=text_of(accepted.messages[-1]),
        init_messages=accepted.messages,
        metadata={
            "answer": accepted.reference,
            "corrected": accepted.opinion.corrected_answer is not None,
            "rating": accepted.opinion.rating,
            "interaction": of.interaction_id,
            "session": of.session,
            "model": of.model,
        },
    )


def _share(name: str) -> float:
    """A number from 0 to 1 that a name always has."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
