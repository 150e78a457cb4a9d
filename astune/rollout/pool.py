"""Concurrent episodes: groups of tasks on one event loop, with a limit, deadlines and retries.

A failed episode is retried in a fresh environment; if retries fail, its group is dropped and counted. It never aborts a
step, and never becomes a reward of 0.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from astune.config.schema import AstuneConfig
from astune.context_tracker.agentscope import quieten
from astune.engine.base import EngineStats, InferenceEngine
from astune.processes.standard_descriptors import refill_standard_descriptors
from astune.renderers import Renderer
from astune.rollout.balance import token_balance
from astune.rollout.blocked_loop import watched_loop
from astune.rollout.episode import EpisodeInterrupted, run_episode
from astune.rollout.observer import NullObserver, RolloutObserver
from astune.rollout.overflow import is_overflow
from astune.rollout.ranking import is_unranked, leave_unranked, rank
from astune.rollout.request import EpisodeRequest
from astune.rollout.setting import RolloutSetting, num_repeat_of, temperature_of
from astune.schema import (
    BudgetSpent,
    ConfigError,
    DebuggerLeft,
    EngineError,
    Episode,
    EpisodeGroup,
    LeaseLost,
    MessageNode,
    Split,
    Task,
    TokenBalance,
)
from astune.task_judge import GroupJudgeBase, JudgeBase
from astune.workflow import Workflow

_log = logging.getLogger(__name__)
_ENGINE_SETTLES_S = 120.0
_SHOWN_CHARACTERS = 600
_LOST_ATTEMPTS = 20
"""Attempts that may be lost with their machines; they do not count towards `rollout.max_attempts`."""


@dataclass
class _Slot:
    """The K episodes of one task as they gather, in the order of their repeats."""

    task: Task
    finished: dict[int, Episode] = field(default_factory=dict)
    failed: list[Episode] = field(default_factory=list)

    def group(self, num_repeat: int, *, out_of_time: bool) -> EpisodeGroup:
        episodes = [self.finished[repeat] for repeat in sorted(self.finished)]
        dropped: str | None = None
        if len(episodes) < num_repeat:
            cause = self.failed[-1].error if self.failed else "not started"
            dropped = f"{'step out of time' if out_of_time else 'group incomplete'}: {cause}"
        return EpisodeGroup(self.task, episodes, list(self.failed), dropped)


class RolloutPool:
    """Runs a workflow on tasks, `num_repeat` episodes each.

    Args:
        judge: None where the workflow returns its reward itself.
        observer: receives every episode.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        renderer: Renderer,
        workflow_class: type[Workflow],
        judge: JudgeBase | None,
        config: AstuneConfig,
        observer: RolloutObserver | None = None,
    ) -> None:
        if inspect.isabstract(workflow_class):
            missing = ", ".join(sorted(workflow_class.__abstractmethods__))
            raise ConfigError(f"rollout.workflow: {workflow_class.__name__} has no method {missing}", hint="define it")
        quieten()
        self._engine = engine
        self._config = config
        self._observer = observer if observer is not None else NullObserver()
        self._setting = RolloutSetting(engine, renderer, workflow_class, judge, config, self._observer)
        self._seen_in: tuple[Split, int] | None = None
        self._seen: Counter[str] = Counter()
        self._tools_seen = False
        self._kept: dict[tuple[Split, int, str, int], Sequence[Episode]] = {}
        self._kept_ids: set[str] = set()

    def keep(self, played: Iterable[Sequence[Episode]]) -> None:
        """Let recorded episodes take the place of new ones: each with the failed attempts before it.

        They are not reported to the observer, which has recorded them.
        """
        for attempts in played:
            last = attempts[-1]
            self._kept[last.split, last.step, last.task.task_id, last.repeat] = attempts
            self._kept_ids.update(episode.episode_id for episode in attempts)

    async def run_groups(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        split: Split,
        num_repeat: int | None = None,
        temperature: float | None = None,
        first_repeat: int = 0,
    ) -> list[EpisodeGroup]:
        """Run one group per task, in the order of `tasks`; `dropped` is the reason of a group that could not be
        completed.

        `num_repeat` and `temperature` are by default the configuration's for this split. `first_repeat` is above 0 if
        another pool runs earlier episodes of the same task and step.

        Cancelling ends every running episode, reports each to the observer as interrupted, and leaves nothing running.

        Raises:
            BudgetSpent: the token budget of the judge's helper model is used up; the other episodes were cancelled.
            DebuggerLeft: the debugger in an episode was quit; the other episodes were cancelled.
        """
        if split == "train" and self._config.rollout.top_p < 1:
            raise ConfigError(
                f"rollout.top_p {self._config.rollout.top_p:g} excludes tokens, whose probabilities training needs; "
                "set it to 1",
                hint="train with rollout.top_p: 1.0; other values are for evaluation",
            )
        num_repeat = num_repeat_of(self._config, split) if num_repeat is None else num_repeat
        temperature = temperature_of(self._config, split) if temperature is None else temperature
        slots: list[_Slot] = []
        waiting: deque[tuple[_Slot, EpisodeRequest]] = deque()
        for task in tasks:
            slots.append(_Slot(task))
            first = first_repeat + self._first_repeat(task, split, step, num_repeat)
            for repeat in range(first, first + num_repeat):
                if attempts := self._kept.pop((split, step, task.task_id, repeat), None):
                    slots[-1].failed += attempts[:-1]
                    slots[-1].finished[repeat] = attempts[-1]
                    continue
                waiting.append((slots[-1], EpisodeRequest(task, split, step, repeat, temperature)))
        with watched_loop(self._config.rollout.episode_timeout_s / 2):
            out_of_time = await self._work_off(waiting, num_repeat)
        refill_standard_descriptors()
        for slot in slots:
            self._fail_unranked(slot, "JudgeError: its group is not complete, and is judged only as a whole")
        groups = [slot.group(num_repeat, out_of_time=out_of_time) for slot in slots]
        self._tools_seen = self._tools_seen or _warn_of_unread_calls(groups)
        return groups

    def balance(self, groups: Sequence[EpisodeGroup], counted: EngineStats) -> TokenBalance:
        """Token accounting of what the engine counted, to which episodes that are kept do not belong."""
        balance = token_balance(groups, counted)
        for group in groups:
            kept = (each for each in (*group.episodes, *group.failed_attempts) if each.episode_id in self._kept_ids)
            balance.sampled += sum(episode.forest.sampled_tokens() for episode in kept)
        return balance

    def _first_repeat(self, task: Task, split: Split, step: int, num_repeat: int) -> int:
        """0, or further on where the same task comes again within a step, as small data sets make it do."""
        if self._seen_in != (split, step):
            self._seen_in, self._seen = (split, step), Counter()
        first = self._seen[task.task_id]
        self._seen[task.task_id] += num_repeat
        return first

    async def _work_off(self, waiting: deque[tuple[_Slot, EpisodeRequest]], num_repeat: int) -> bool:
        """Run all requests, at most `max_env_worker` at once; True where the step's deadline came first."""
        began = time.perf_counter()
        first = [waiting.popleft() for _ in range(min(self._config.rollout.max_env_worker, len(waiting)))]
        for _, request in first:
            self._engine.open_session(request.episode_id)
        workers = [
            asyncio.ensure_future(self._work(slot, request, waiting, began, num_repeat)) for slot, request in first
        ]
        out_of_time = False
        try:
            if workers:
                done, unfinished = await asyncio.wait(
                    workers, timeout=self._config.rollout.step_timeout_s, return_when=asyncio.FIRST_EXCEPTION
                )
                for worker in done:
                    worker.result()
                out_of_time = bool(unfinished)
        finally:
            waiting.clear()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        await self._engine_settled()
        return out_of_time

    async def _work(
        self,
        slot: _Slot,
        request: EpisodeRequest,
        waiting: deque[tuple[_Slot, EpisodeRequest]],
        began: float,
        num_repeat: int,
    ) -> None:
        """Run one request after another."""
        try:
            while True:
                following = await self._run(slot, request, time.perf_counter() - began)
                if len(slot.finished) == num_repeat:
                    await self._rank(slot)
                if following is None and waiting:
                    slot, following = waiting.popleft()
                if following is None:
                    return
                self._engine.open_session(following.episode_id)
                self._engine.close_session(request.episode_id)
                request = following
        finally:
            self._engine.close_session(request.episode_id)

    async def _run(self, slot: _Slot, request: EpisodeRequest, waited_s: float) -> EpisodeRequest | None:
        """Run one attempt and store its result; return the request to retry, if any."""
        try:
            episode = await run_episode(self._setting, request, waited_s=waited_s)
        except EpisodeInterrupted as interruption:
            slot.failed.append(interruption.episode)
            self._observer.on_attempt_failed(interruption.episode)
            if interruption.by_debugger:
                raise DebuggerLeft("the debugger was quit") from None
            raise
        if episode.status != "error":
            slot.finished[request.repeat] = episode
            if not is_unranked(episode):
                self._observer.on_finished(episode)
            return None
        slot.failed.append(episode)
        self._observer.on_attempt_failed(episode)
        _require_budget(episode)
        lost = (episode.error or "").startswith(LeaseLost.__name__) and request.lost < _LOST_ATTEMPTS
        if not lost and (is_overflow(episode) or request.attempt - request.lost >= self._config.rollout.max_attempts):
            return None
        return request.retried(lost=lost)

    async def _rank(self, slot: _Slot) -> None:
        """Judge a complete group if its episodes wait for a group judge."""
        waiting = [episode for episode in slot.finished.values() if is_unranked(episode)]
        if not waiting or not isinstance(self._setting.judge, GroupJudgeBase):
            return
        await rank(self._setting.judge, waiting, timeout_s=self._config.rollout.call_timeout_s)
        for episode in waiting:
            if episode.status != "error":
                self._observer.on_finished(episode)
        self._fail(slot, [episode for episode in waiting if episode.status == "error"])

    def _fail_unranked(self, slot: _Slot, error: str) -> None:
        waiting = [episode for episode in slot.finished.values() if is_unranked(episode)]
        for episode in waiting:
            leave_unranked(episode, error)
        self._fail(slot, waiting)

    def _fail(self, slot: _Slot, episodes: Sequence[Episode]) -> None:
        """Count episodes that had finished as failed."""
        for episode in episodes:
            del slot.finished[episode.repeat]
            slot.failed.append(episode)
            self._observer.on_attempt_failed(episode)
        for episode in episodes:
            _require_budget(episode)

    async def _engine_settled(self) -> None:
        """Wait until cancelled calls have left the engine, so that its counters are final."""
        give_up = time.perf_counter() + _ENGINE_SETTLES_S
        while (stats := self._engine.stats()).running or stats.waiting:
            if time.perf_counter() > give_up:
                raise EngineError(
                    f"{_ENGINE_SETTLES_S:g} s after every episode ended the engine still has {stats.running} calls "
                    f"running and {stats.waiting} waiting: its tokens cannot be accounted for",
                    hint="the engine hangs, or one forward pass takes longer; continue with --resume",
                )
            await asyncio.sleep(0.01)


def _require_budget(episode: Episode) -> None:
    """
    Raises:
        BudgetSpent: that is why the episode failed, and every other one would.
    """
    kind, _, message = (episode.error or "").partition(": ")
    if kind == BudgetSpent.__name__:
        raise BudgetSpent(message)


def _warn_of_unread_calls(groups: Sequence[EpisodeGroup]) -> bool:
    """Warn where tools were offered and no answer was read as a call, as by a parser of another model family. Returns
    whether tools were offered."""
    episodes = [episode for group in groups for episode in (*group.episodes, *group.failed_attempts)]
    answers = [node for episode in episodes for node in _answers_with_tools(episode)]
    if answers and not any(node.tool_calls for node in answers):
        _log.warning(
            "tools were offered for %d answers of the first step, but no tool call was parsed. The model may not "
            "call tools yet, or uses another format than its chat template: show a solved example with a call in the "
            "agent's first messages, or force one with tool_choice='required'. The first answer: %r",
            len(answers),
            str(answers[0].content)[:_SHOWN_CHARACTERS],
        )
    return bool(answers)


def _answers_with_tools(episode: Episode) -> Iterator[MessageNode]:
    return (
        node
        for node in episode.forest.nodes
        if node.sampled and node.constraint is None and episode.forest.path(node.node_id)[0].tools
    )
