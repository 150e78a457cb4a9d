"""Engine calls of finished episodes, with prompts and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.renderers.messages import message_of
from astune.schema import Constraint, EpisodeGroup, Message
from astune.trainer.samples import WeightedTimeline


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that is trained: the conversation, the tokens that stand for it in the record, and the answer."""

    messages: list[Message]
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    weights_version: int
    constraint: Constraint | None

    def timeline(self) -> WeightedTimeline:
        """The call as the trainer reads it, its answer trained with a weight of 0."""
        return WeightedTimeline.unweighted(
            self.prompt_ids, self.token_ids, self.logprobs, version=self.weights_version, constraint=self.constraint
        )


def recorded_calls(groups: Sequence[EpisodeGroup]) -> list[RecordedCall]:
    """Every call whose answer is trained."""
    calls: list[RecordedCall] = []
    for episode in (episode for group in groups for episode in group.episodes):
        for node, prompt_ids, completion in episode.forest.replay():
            masked = node.constraint is not None and episode.constrained_tokens == "mask"
            if node.trainable and completion.token_ids and not masked:
                path = episode.forest.path(node.parent)
                calls.append(
                    RecordedCall(
                        messages=[message_of(asked) for asked in path],
                        prompt_ids=prompt_ids,
                        token_ids=completion.token_ids,
                        logprobs=completion.logprobs,
                        weights_version=completion.weights_version,
                        constraint=node.constraint,
                    )
                )
    return calls


def spread(calls: Sequence[RecordedCall], n: int) -> list[RecordedCall]:
    """Select up to `n` calls, evenly from the first to the last."""
    if len(calls) <= n:
        return list(calls)
    return [calls[index * len(calls) // n] for index in range(n)]
