"""Episodes that nobody sampled: the conversations that tasks bring, tokenised as the model would have written them.

A task's `metadata.messages` is such a conversation, with `metadata.tools`; without one the task's opening and its
reference answer are. The assistant's tokens are trained, the others are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker import ContextTracker
from astune.engine.base import EngineStats
from astune.renderers import Comparison, Renderer
from astune.rollout.attempt import opening_of
from astune.rollout.balance import token_balance
from astune.rollout.observer import RolloutObserver
from astune.rollout.pool import RolloutPool
from astune.rollout.request import EpisodeRequest
from astune.schema import (
    AstuneError,
    Completion,
    Episode,
    EpisodeGroup,
    Message,
    Reward,
    Split,
    Task,
    TaskReaderError,
    TokenBalance,
    WorkflowError,
)
from astune.workflow.agent_model import DEFAULT_AGENT

_GOOD = Reward(raw_reward=1.0, is_success=True, metadata={"demonstration": True})


class DemonstrationPool:
    """Makes training episodes of the tasks' own conversations, and runs held-out tasks as `pool` does."""

    def __init__(self, pool: RolloutPool, renderer: Renderer, config: AstuneConfig, observer: RolloutObserver) -> None:
        self._pool = pool
        self._renderer = renderer
        self._config = config
        self._observer = observer

    async def run_groups(
        self, tasks: Sequence[Task], *, step: int, split: Split, num_repeat: int, temperature: float
    ) -> list[EpisodeGroup]:
        """One episode a training task; `num_repeat` counts for held-out tasks alone."""
        if split != "train":
            return await self._pool.run_groups(
                tasks, step=step, split=split, num_repeat=num_repeat, temperature=temperature
            )
        return [self._group(EpisodeRequest(task, split, step, at, temperature)) for at, task in enumerate(tasks)]

    def balance(self, groups: Sequence[EpisodeGroup], before: EngineStats, after: EngineStats) -> TokenBalance:
        """The assistant's tokens of demonstrations stand for those that an engine samples."""
        balance = token_balance(groups, before, after)
        balance.sampled += sum(_tokens_in(group) for group in groups if _is_demonstration(group))
        return balance

    def _group(self, request: EpisodeRequest) -> EpisodeGroup:
        self._observer.on_started(request.episode_id, request.task)
        try:
            episode = demonstration(request, self._renderer, self._config)
        except AstuneError as failure:
            return EpisodeGroup(request.task, [], [], f"no demonstration: {failure.message}")
        self._observer.on_finished(episode)
        return EpisodeGroup(request.task, [episode])


def demonstration(request: EpisodeRequest, renderer: Renderer, config: AstuneConfig) -> Episode:
    """The conversation of a task as an episode.

    Raises:
        TaskReaderError: the task has neither a conversation nor a reference answer.
        WorkflowError: the chat template cannot express it, or writes answers otherwise than it lets a model begin them.
        ContextOverflow: it is longer than `rollout.max_model_len`.
    """
    task = request.task
    messages = messages_of(task, config.task_judge.reference_field)
    tools: list[dict[str, Any]] = list(task.metadata.get("tools") or ())
    tracker = ContextTracker(renderer, config.rollout.max_model_len, Comparison("text", ignore_tools=False))
    for at, message in enumerate(messages):
        if message.get("role") == "assistant":
            pending = tracker.prepare(messages[:at], tools, agent=DEFAULT_AGENT, trainable=True)
            answer_ids = _answer_ids(renderer, messages[: at + 1], tools)
            # They were given, and so with certainty; an algorithm that learns from them does not read this.
            tracker.commit(pending, Completion(answer_ids, [0.0] * len(answer_ids), "stop", 0))
    episode = request.episode(seed=0, forest=tracker.forest, status="success")
    episode.reward = _GOOD
    episode.metrics = {"demonstrated_tokens": float(tracker.forest.sampled_tokens())}
    return episode


def messages_of(task: Task, reference_field: str) -> list[Message]:
    """The conversation that a task demonstrates.

    Raises:
        TaskReaderError: there is none, or it has no answer of an assistant.
    """
    messages = task.metadata.get("messages")
    reference = task.metadata.get(reference_field)
    if messages is None and reference is not None:
        messages = [*opening_of(task), {"role": "assistant", "content": str(reference)}]
    if not isinstance(messages, list) or not any(each.get("role") == "assistant" for each in messages):
        raise TaskReaderError(
            f"task {task.task_id} demonstrates nothing",
            hint=f"give it metadata.messages with an answer of the assistant, or metadata.{reference_field}",
        )
    return messages


def _answer_ids(renderer: Renderer, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
    """The tokens that the model would have sampled to write the last message: up to the one that ends its turn."""
    prompt_ids = renderer.render(messages[:-1], tools).token_ids
    whole_ids = renderer.render(messages, tools).token_ids  # with what follows: there the answer's turn ends
    if whole_ids[: len(prompt_ids)] != prompt_ids:
        raise WorkflowError(
            "the chat template writes this answer otherwise than it lets a model begin one",
            hint="leave out of the conversation what the template drops or adds, such as reasoning",
        )
    answer_ids = whole_ids[len(prompt_ids) :]
    ends = [at for at, token in enumerate(answer_ids) if token in renderer.stop_token_ids]
    if not ends:
        raise WorkflowError("the chat template ends this answer with no token that ends a turn")
    return answer_ids[: ends[0] + 1]


def _is_demonstration(group: EpisodeGroup) -> bool:
    return any(episode.reward is _GOOD for episode in group.episodes)


def _tokens_in(group: EpisodeGroup) -> int:
    return sum(episode.forest.sampled_tokens() for episode in group.episodes)
