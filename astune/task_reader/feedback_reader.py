"""Tasks from what users asked, with the answers that they accepted or wrote themselves as references."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from astune.env_service.base import text_of
from astune.feedback.interaction import Interaction, digest_of
from astune.feedback.question import plain
from astune.feedback.store import FeedbackStore, Opinion
from astune.schema import Message, Task, TaskReaderError
from astune.task_reader.reader import TaskReaderBase

_Question = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Opined:
    """Rated conversation: the query in `messages`, the accepted or corrected answer, and the rejected one.

    An empty text is none. `calls` is what the model did between the last question and its answer: calls of tools, and
    their results.
    """

    messages: list[Message]
    calls: list[Message]
    reference: str
    rejected: str
    weight: float
    interaction: Interaction
    opinion: Opinion


class TaskReaderFeedback(TaskReaderBase):
    """Rated interactions of a store. A task is the conversation up to the last question; its reference, in
    `metadata.answer`, is the corrected answer where a user gave one, and else the answer that was rated well enough.

    An answer that was corrected or rated below 0 is `metadata.rejected`, where it is not the reference.

    Where tools were called between the question and the answer, `metadata.messages` is the whole conversation, so that
    the model does not learn to answer without them. Calls that led to an accepted answer are learned; those before a
    corrected one are only read, since they may be wrong. Pairs are `metadata.chosen` and `rejected`, each with its
    calls.

    Of several references to one question the one with the most weight is taken. What is held out is decided by session,
    so that no conversation is on both sides: of several by the one of the earliest accepted answer, so that a question
    stays on its side when a better answer comes. Questions that differ in case and blanks alone are on one side.
    """

    def training_tasks(self) -> list[Task]:
        only_pairs = self.config.feedback_tracing.only_pairs
        found = list(self._tasks())
        tasks = [task for task, held_out in found if not held_out]
        if not tasks:
            raise TaskReaderError(
                f"all {len(found):,} questions with an accepted answer are held out",
                hint="collect feedback of more sessions, or lower task_reader.feedback_tracing.held_out",
            )
        if not only_pairs:
            return tasks
        pairs = [task for task in tasks if "rejected" in task.metadata]
        if not pairs:
            raise TaskReaderError(
                f"none of {len(tasks):,} questions with an accepted answer has a rejected one too",
                hint="pairs are answers that users corrected, and questions with a good and a badly rated answer",
            )
        return pairs

    def validation_tasks(self) -> list[Task]:
        return [task for task, held_out in self._tasks() if held_out]

    def _tasks(self) -> Iterator[tuple[Task, bool]]:
        config = self.config.feedback_tracing
        path = self.find(config.path, key="task_reader.feedback_tracing.path")
        best, first = dict[str, _Opined](), dict[_Question, _Opined]()
        rejected = defaultdict[str, list[_Opined]](list)
        with closing(FeedbackStore(path)) as store:
            for opined in _opined(store, config.min_rating):
                digest = _digest(opined.messages)
                if opined.rejected:
                    rejected[digest].append(opined)
                if opined.reference:
                    best[digest] = max(best.get(digest, opined), opined, key=lambda each: each.weight)
                    question = _question(opined.messages)
                    first[question] = min(first.get(question, opined), opined, key=_age)
        if not best:
            raise TaskReaderError(
                f"{path} holds no answer that is rated {config.min_rating:g} or better, and no corrected one",
                hint="`astune feedback show` counts what is there; lower task_reader.feedback_tracing.min_rating",
            )
        for digest, accepted in best.items():
            earliest = first[_question(accepted.messages)]
            yield (
                _task(digest, accepted, rejected[digest]),
                _share(earliest.interaction.session or _digest(earliest.messages)) < config.held_out,
            )


def _opined(store: FeedbackStore, min_rating: float) -> Iterator[_Opined]:
    opinions = store.opinions()
    for interaction in store.interactions():
        opinion = opinions.get(interaction.interaction_id)
        if opinion is None:
            continue
        asked = [i for i, message in enumerate(interaction.messages) if message.get("role") == "user"]
        if not asked:
            continue
        answer, rating = text_of(interaction.messages[-1]), opinion.rating
        reference = opinion.corrected_answer
        if reference is None and rating is not None and rating >= min_rating:
            reference = answer
        unwanted = opinion.corrected_answer is not None or (rating is not None and rating < 0)
        rejected = answer if unwanted and answer != reference else ""
        if reference or rejected:
            asked_until = asked[-1] + 1
            yield _Opined(
                interaction.messages[:asked_until],
                interaction.messages[asked_until:-1],
                reference or "",
                rejected,
                opinion.weight,
                interaction,
                opinion,
            )


def _digest(messages: Sequence[Message]) -> str:
    return digest_of([(each["role"], text_of(each)) for each in messages])


def _question(messages: Sequence[Message]) -> _Question:
    """The conversation up to its last question, without what differs in case and blanks alone."""
    return tuple((each["role"], plain(text_of(each))) for each in messages)


def _age(opined: _Opined) -> tuple[float, str]:
    return opined.interaction.created_at, opined.interaction.interaction_id


def _task(digest: str, accepted: _Opined, rejected: Sequence[_Opined]) -> Task:
    of, corrected = accepted.interaction, accepted.opinion.corrected_answer is not None
    worse = [each for each in rejected if each.rejected != accepted.reference]
    # the answer that the reference corrects comes first, then by weight
    worse.sort(key=lambda each: (each is not accepted, -each.weight))
    metadata: dict[str, Any] = {"answer": accepted.reference}
    if accepted.calls:
        read = [*accepted.messages, *accepted.calls] if corrected else accepted.messages
        learned = [] if corrected else accepted.calls
        metadata["messages"] = [*map(_only_read, read), *learned, _answer(accepted.reference)]
    if of.tools:
        metadata["tools"] = of.tools
    if worse and (accepted.calls or worse[0].calls):
        metadata["chosen"] = [*accepted.calls, _answer(accepted.reference)]
        metadata["rejected"] = [*worse[0].calls, _answer(worse[0].rejected)]
    elif worse:
        metadata["rejected"] = worse[0].rejected
    metadata |= {
        "corrected": corrected,
        "rating": accepted.opinion.rating,
        "interaction": of.interaction_id,
        "session": of.session,
        "model": of.model,
    }
    return Task(
        task_id=f"feedback-{digest[:16]}",
        main_query=text_of(accepted.messages[-1]),
        init_messages=accepted.messages,
        metadata=metadata,
    )


def _answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _only_read(message: Message) -> Message:
    """The message, marked as nothing to learn where it is an answer."""
    return {**message, "weight": 0} if message.get("role") == "assistant" else message


def _share(name: str) -> float:
    """A number from 0 to 1 that a name always has."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
