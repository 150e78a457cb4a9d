"""Engine calls of finished episodes, with prompts and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.renderers.messages import message_of
from astune.schema import Constraint, EpisodeGroup, Message
from astune.trainer.samples import ConstrainedRun, WeightedTimeline


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
        n_prompt, n_sampled = len(self.prompt_ids), len(self.token_ids)
        end = n_prompt + n_sampled
        return WeightedTimeline(
            token_ids=[*self.prompt_ids, *self.token_ids],
            positions=list(range(n_prompt, end)),
            engine_logprobs=self.logprobs,
            versions=[self.weights_version] * n_sampled,
            advantages=[0.0] * n_sampled,
            token_weight=0.0,
            group=0,
            constrained=[ConstrainedRun(n_prompt, end, self.constraint)] if self.constraint is not None else [],
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
