"""Episodes that were not sampled: the tasks' answers, tokenised as if the model had written them.

A demonstration is the conversation in a task's `metadata.messages`, with `metadata.tools`; an answer with `weight: 0`
is read and not trained. Without one, it is the task's prompt with its reference answer. A preference pair is two
answers to a task's prompt: `metadata.chosen`, or else the reference answer, and `metadata.rejected`. The assistant's
tokens are trained, the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker import ContextTracker
from astune.engine.base import EngineStats
from astune.env_service.base import text_of
from astune.renderers import Comparison, Renderer
from astune.rollout.attempt import opening_of
from astune.rollout.balance import token_balance
from astune.rollout.observer import RolloutObserver
from astune.rollout.pool import RolloutPool
from astune.rollout.request import EpisodeRequest
from astune.rollout.setting import temperature_of
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
from astune.schema.episode import GIVEN_TOKENS
from astune.workflow.agent_model import DEFAULT_AGENT

WEIGHT = "weight"
_GOOD = Reward(raw_reward=1.0, is_success=True, metadata={"demonstration": True})
_BAD = Reward(raw_reward=0.0, is_success=False, metadata={"demonstration": True})


@dataclass(frozen=True, slots=True)
class GivenEpisodes:
    """Conversion of a task's answers to the episodes of its group, and the name of such a group."""

    name: str
    of: Callable[[EpisodeRequest, Renderer, AstuneConfig], list[Episode]]


class DemonstrationPool:
    """Pool that creates training episodes from the tasks' answers, and runs validation tasks like `pool`."""

    def __init__(
        self,
        pool: RolloutPool,
        renderer: Renderer,
        config: AstuneConfig,
        observer: RolloutObserver,
        given: GivenEpisodes | None = None,
    ) -> None:
        self._pool = pool
        self._renderer = renderer
        self._config = config
        self._observer = observer
        self._given = given or DEMONSTRATIONS

    async def run_groups(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        split: Split,
        num_repeat: int | None = None,
        temperature: float | None = None,
    ) -> list[EpisodeGroup]:
        """Return one demonstration or one pair per training task; `num_repeat` applies to validation tasks only."""
        if split != "train":
            return await self._pool.run_groups(
                tasks, step=step, split=split, num_repeat=num_repeat, temperature=temperature
            )
        temperature = temperature_of(self._config, split) if temperature is None else temperature
        return [self._group(EpisodeRequest(task, split, step, at, temperature)) for at, task in enumerate(tasks)]

    def balance(self, groups: Sequence[EpisodeGroup], counted: EngineStats) -> TokenBalance:
        """Count the assistant's tokens of given answers in place of sampled ones."""
        balance = token_balance(groups, counted)
        given = [group.episodes for group in groups if any(episode.reward is _GOOD for episode in group.episodes)]
        balance.sampled += sum(episode.forest.sampled_tokens() for episodes in given for episode in episodes)
        return balance

    def _group(self, request: EpisodeRequest) -> EpisodeGroup:
        self._observer.on_started(request.episode_id, request.task)
        try:
            episodes = self._given.of(request, self._renderer, self._config)
        except AstuneError as failure:
            return EpisodeGroup(request.task, [], [], f"no {self._given.name}: {failure.message}")
        for episode in episodes:
            self._observer.on_finished(episode)
        return EpisodeGroup(request.task, episodes)


def demonstration(request: EpisodeRequest, renderer: Renderer, config: AstuneConfig) -> Episode:
    """The conversation of a task as an episode.

    Raises:
        TaskReaderError: the task has neither a conversation nor a reference answer.
        WorkflowError: the chat template cannot express it, or its answers begin differently from its generation prompt.
        ContextOverflow: it is longer than `rollout.max_model_len`.
    """
    messages, n_read = messages_of(request.task, config.task_judge.reference_field)
    return _given(request, messages, n_read, _GOOD, renderer, config)


def preference(request: EpisodeRequest, renderer: Renderer, config: AstuneConfig) -> list[Episode]:
    """Return a task's chosen and rejected answer as episodes, in this order.

    Raises:
        TaskReaderError: one of them is missing, or they are the same.
        WorkflowError, ContextOverflow: see `demonstration`.
    """
    task = request.task
    opening = opening_of(task)
    chosen, rejected = (_answer(task, name) for name in ("chosen", "rejected"))
    chosen = chosen or _answer(task, config.task_judge.reference_field)
    if not chosen or not rejected or chosen == rejected:
        raise TaskReaderError(
            f"task {task.task_id} has no preferred answer",
            hint="give it two different answers, metadata.chosen and metadata.rejected",
        )
    repeat = 2 * request.repeat
    return [
        _given(replace(request, repeat=repeat + at), [*opening, *answer], len(opening), reward, renderer, config)
        for at, (answer, reward) in enumerate([(chosen, _GOOD), (rejected, _BAD)])
    ]


def _given(
    request: EpisodeRequest,
    messages: list[Message],
    n_read: int,
    reward: Reward,
    renderer: Renderer,
    config: AstuneConfig,
) -> Episode:
    """Create an episode from `messages`; the first `n_read` of them are read, not trained."""
    tools: list[dict[str, Any]] = list(request.task.metadata.get("tools") or ())
    learned = [at for at, each in enumerate(messages) if at >= n_read and _is_learned(each)]
    messages = [{name: value for name, value in each.items() if name != WEIGHT} for each in messages]
    tracker = ContextTracker(renderer, config.rollout.max_model_len, Comparison("text", ignore_tools=False))
    for at in learned:
        pending = tracker.prepare(messages[:at], tools, agent=DEFAULT_AGENT, trainable=True)
        answer_ids = _answer_ids(renderer, messages[: at + 1], tools)
        # They were given, and so with certainty; an algorithm that learns from them does not read this.
        tracker.commit(pending, Completion(answer_ids, [0.0] * len(answer_ids), "stop", 0))
    status = "success" if reward.is_success else "failed"
    episode = request.episode(seed=0, forest=tracker.forest, status=status)
    episode.reward = reward
    episode.metrics = {GIVEN_TOKENS: float(tracker.forest.sampled_tokens())}
    return episode


DEMONSTRATIONS = GivenEpisodes("demonstration", lambda *given: [demonstration(*given)])
PREFERENCES = GivenEpisodes("preference", preference)


def messages_of(task: Task, reference_field: str) -> tuple[list[Message], int]:
    """The conversation that a task demonstrates, and how many messages of it are only read.

    These are the opening's, where only the answer is given.

    Raises:
        TaskReaderError: there is none, or it has no answer of an assistant.
    """
    messages, n_read = task.metadata.get("messages"), 0
    if messages is None and (answer := _answer(task, reference_field)):
        opening = opening_of(task)
        messages, n_read = [*opening, *answer], len(opening)
    if not isinstance(messages, list) or not any(map(_is_learned, messages[n_read:])):
        raise TaskReaderError(
            f"task {task.task_id} has no demonstration",
            hint=f"give it metadata.messages with an answer of the assistant, or metadata.{reference_field}",
        )
    return messages, n_read


def _is_learned(message: Message) -> bool:
    """Whether it is an answer that is not marked as only read, as OpenAI's format of fine-tuning data does."""
    return message.get("role") == "assistant" and message.get(WEIGHT) != 0


def _answer(task: Task, field: str) -> list[Message]:
    """Return the answer in a metadata field as messages that follow the task's opening; empty if there is none.

    It is a text, a number, or messages, which may repeat the opening.
    """
    value = task.metadata.get(field)
    if value is None or value == []:
        return []
    if isinstance(value, str | int | float):
        return [{"role": "assistant", "content": str(value)}]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise TaskReaderError(
            f"task {task.task_id}: metadata.{field} is no text and no list of messages",
            hint="give it the one answer that is to be learned",
        )
    has_system = value[0].get("role") == "system"
    opening = [each for each in opening_of(task) if has_system or each["role"] != "system"]
    if list(map(_spoken, value[: len(opening)])) == list(map(_spoken, opening)):
        value = value[len(opening) :]
    if value and value[0].get("role") not in ("assistant", "tool"):
        raise TaskReaderError(
            f"task {task.task_id}: metadata.{field} begins with a message of the {value[0].get('role')}",
            hint="begin it with the assistant's answer to the task, or with exactly the messages of the task",
        )
    return value


def _spoken(message: Message) -> tuple[object, str]:
    return message.get("role"), text_of(message)


def _answer_ids(renderer: Renderer, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
    """The tokens that the model would have sampled to write the last message: up to the one that ends its turn."""
    prompt_ids = renderer.render(messages[:-1], tools).token_ids
    whole_ids = renderer.render(messages, tools).token_ids  # with what follows: there the answer's turn ends
    if whole_ids[: len(prompt_ids)] != prompt_ids:
        raise WorkflowError(
            "the chat template does not begin this answer with its generation prompt",
            hint="leave out of the conversation what the template drops or adds, such as reasoning",
        )
    answer_ids = whole_ids[len(prompt_ids) :]
    ends = [at for at, token in enumerate(answer_ids) if token in renderer.stop_token_ids]
    if not ends:
        raise WorkflowError("the chat template ends this answer with no token that ends a turn")
    return answer_ids[: ends[0] + 1]
