"""An attempt at an episode: a fresh environment, the workflow, the judge, and the record of it."""

from __future__ import annotations

import copy
import json
import logging
import random
import time
from typing import Any

from astune.env_service import EnvironmentHandle, EnvState, open_environment
from astune.env_service.handle import RELEASE_S
from astune.rollout.overflow import UNJUDGED, require_consequence
from astune.rollout.ranking import UNRANKED
from astune.rollout.request import EpisodeRequest
from astune.rollout.setting import RolloutSetting
from astune.rollout.user_workflow import execute, new_workflow, require_something_to_train, targets_of
from astune.rollout.verdict import ask_judge, workflow_reward
from astune.schema import (
    AstuneError,
    DeadlineExceeded,
    EnvError,
    Episode,
    Forest,
    JudgeError,
    Message,
    Reward,
    Task,
    WorkflowError,
    boundary,
    stable_seed,
)
from astune.task_judge import GroupJudgeBase, JudgeBase
from astune.workflow import AstuneProxy, EpisodeModel, WorkflowOutput

_log = logging.getLogger(__name__)

_REFUSED_CALLS = 100
"""Refused calls after which an agent that repeats a prompt that does not fit is stopped."""


class Attempt:
    """Steps of one attempt: `play`, then always `release`, then `record`."""

    def __init__(self, setting: RolloutSetting, request: EpisodeRequest) -> None:
        config = setting.config
        self._setting = setting
        self._config = config
        self._request = request
        # Whatever an agent or a judge changes in its task stays in its own episode.
        self._task = copy.deepcopy(request.task)
        self._seed = stable_seed(config.seed, request.episode_id)
        # One seed a task: the episodes of a group meet the same world.
        self._world_seed = stable_seed(config.seed, request.task.task_id)
        self._environment: EnvironmentHandle | None = None
        self._proxy: AstuneProxy | None = None
        self._reward: Reward | None = None
        self._output = WorkflowOutput()
        self._consequences: list[AstuneError] = []
        self._judge_seconds = 0.0
        self.phase = "environment"
        self.model = EpisodeModel(
            setting.engine,
            setting.renderer,
            config,
            session=request.episode_id,
            seed=self._seed,
            temperature=request.temperature,
            on_call=lambda begins: self._wait("model" if begins else "workflow"),
        )

    async def play(self) -> None:
        """Environment, workflow, judge."""
        self._wait("environment")
        beginning = await self._create_environment()
        workflow = new_workflow(self._setting.workflow_class, self._config)
        request = self._request
        past = self._config.past_player(request.step, request.task.task_id) if request.split == "train" else None
        self._proxy = AstuneProxy(
            self.model,
            self._environment,
            task=self._task,
            init_messages=beginning.state,
            env_info=beginning.info,
            trainable_targets=targets_of(workflow),
            empty_on_overflow=workflow.empty_on_overflow,
            on_wait=self._wait,
            split=self._request.split,
            rng=random.Random(self._world_seed),
            repeat=self._request.repeat,
            past=past,
        )
        self._wait("workflow")
        try:
            self._output = await execute(workflow, self._task, self._proxy, self._config)
        except WorkflowError as failure:
            self._follows(failure)
        self.model.require_open()
        if past is None or any(node.trainable for node in self._forest.nodes):  # else only that player spoke
            require_something_to_train(
                workflow,
                self._task,
                self._forest,
                self.model.cut,
                free_answer=self._request.split == "train" and self._config.constrained_tokens == "mask",
            )
        self._wait("judge")
        self._reward = await self._judge(self._proxy)

    async def release(self) -> str | None:
        """Release the environment; return the error, if any, of an otherwise successful episode."""
        if self._environment is None:
            return None
        what = f"releasing the environment of task {self._task.task_id}"
        try:
            async with boundary(EnvError, what, timeout_s=min(RELEASE_S, self._config.rollout.call_timeout_s)):
                await self._environment.release()
        except AstuneError as failure:
            return f"{failure.kind}: {failure}"
        return None

    def record(self, error: str | None) -> Episode:
        """Return the episode in its present state."""
        reward = self._reward if error is None else None
        status = "error" if reward is None else "success" if reward.is_success else "failed"
        truncated = self._proxy is not None and (self._proxy.cut or self._proxy.turns_exhausted)
        if reward is not None and truncated:
            status = "truncated"
            ended_by = [self.model.cut, *self._consequences] if self.model.cut is not None else []
            error = "; then ".join(f"{failure.kind}: {failure}" for failure in ended_by) or None
        episode = self._request.episode(seed=self._seed, forest=self._forest, status=status, error=error)
        episode.reward = reward
        episode.constrained_tokens = self._config.constrained_tokens
        episode.metrics = self._metrics()
        episode.timings = {"model": self.model.seconds, "judge": self._judge_seconds}
        if self._proxy is not None:
            episode.timings["env"] = self._proxy.env_seconds
            episode.judge_inputs = _jsonable(self._proxy.get_judge_input_dictionary())
            episode.targets = {agent: tag for agent, tag in self._proxy.targets.items() if agent != tag}
        return episode

    async def _create_environment(self) -> EnvState:
        """First messages of the conversation: the environment's, or the task's."""
        task = self._task
        what = f"creating the environment of task {task.task_id}"
        timeout_s = self._config.rollout.call_timeout_s
        async with boundary(EnvError, what, timeout_s=timeout_s):
            handle = open_environment(task.env_type, task, self._world_seed, timeout_s=timeout_s)
            self._environment = handle
            begun = await handle.create() if handle is not None else EnvState([])
        return begun if begun.state else EnvState(opening_of(task), begun.info)

    async def _judge(self, proxy: AstuneProxy) -> Reward:
        try:
            return await self._judged(proxy)
        except (JudgeError, WorkflowError) as failure:
            self._follows(failure)
            return UNJUDGED

    async def _judged(self, proxy: AstuneProxy) -> Reward:
        own = workflow_reward(self._output, self._forest, proxy.targets, self._setting.workflow_class.__name__)
        if own is not None:
            return own
        if self._setting.judge is None:
            if self.model.cut is not None:
                return UNJUDGED
            raise JudgeError(
                "there is neither a judge nor a reward from the workflow",
                hint="set task_judge.judge_protocol, or return WorkflowOutput(reward=...) from the workflow",
            )
        if isinstance(self._setting.judge, GroupJudgeBase):
            return UNRANKED
        start = time.perf_counter()
        try:
            return await self._ask(self._setting.judge, proxy)
        except (JudgeError, DeadlineExceeded) as failure:  # much cheaper than to play the episode again
            _log.debug("asking the judge of episode %s again: %s", self._request.episode_id, failure)
            return await self._ask(self._setting.judge, proxy)
        finally:
            self._judge_seconds = time.perf_counter() - start

    async def _ask(self, judge: JudgeBase, proxy: AstuneProxy) -> Reward:
        return await ask_judge(
            judge,
            self._task,
            environment=self._environment,
            forest=self._forest,
            targets=proxy.targets,
            registered=proxy.get_judge_input_dictionary(),
            timeout_s=self._config.rollout.call_timeout_s,
        )

    @property
    def _forest(self) -> Forest:
        """Return the forest recorded so far; with `deterministic`, in an order independent of timing."""
        forest = self.model.tracker.forest
        return forest.by_tokens() if self._config.deterministic else forest

    def _follows(self, failure: AstuneError) -> None:
        """Note what failed after the episode was cut, and raise what failed for another reason."""
        require_consequence(failure, self.model.cut)
        self._consequences.append(failure)

    def ends_as_overflow(self, failure: AstuneError) -> bool:
        """Return whether the agent kept repeating a prompt that does not fit until the deadline: the attempt is
        truncated."""
        in_vain = self.model.n_overflows >= _REFUSED_CALLS and self.phase == "workflow"
        if not (in_vain and isinstance(failure, DeadlineExceeded)):
            return False
        self._consequences.append(failure)
        self._reward = UNJUDGED
        return True

    def _metrics(self) -> dict[str, float]:
        forest = self._forest
        sampled = [node for node in forest.nodes if node.sampled]
        judged = self._reward.metrics if self._reward is not None else {}
        return (
            self._output.metrics
            | judged
            | {
                "turns": float(len(sampled)),
                "env_steps": float(self._proxy.n_steps if self._proxy is not None else 0),
                "sampled_tokens": float(forest.sampled_tokens()),
                "read_tokens": float(sum(len(node.prompt_delta) for node in forest.nodes)),
                "cut_answers": float(sum(node.finish_reason == "length" for node in sampled)),
                "malformed_calls": float(sum(len(node.malformed_calls) for node in sampled)),
                "relaxed_messages": float(self.model.tracker.relaxed),
                "branches": float(sum(node.fork_cause is not None for node in forest.nodes)),
            }
        )

    def _wait(self, what: str) -> None:
        self.phase = what
        self._setting.observer.on_waits_for(self._request.episode_id, what)


def opening_of(task: Task) -> list[Message]:
    """The first messages that an agent of a task without an environment reads."""
    return list(task.init_messages) or [{"role": "user", "content": task.main_query}]


def _jsonable(inputs: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in inputs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            continue
        kept[key] = value
    return kept
