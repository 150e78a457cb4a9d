"""One episode: a fresh environment, the workflow, the judge, and a record of it whatever happens.

It always ends in an `Episode`: with a reward, or in error with a cause and no reward. Retrying is the pool's business.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig
from astune.context_tracker import ContextTracker, Renderer
from astune.engine.base import InferenceEngine
from astune.env_service import EnvironmentHandle, open_environment
from astune.rollout.observer import RolloutObserver
from astune.rollout.request import EpisodeRequest
from astune.rollout.supervise import supervise
from astune.rollout.verdict import Judge, ask_judge, workflow_reward
from astune.schema import (
    AstuneError,
    ContextOverflow,
    EnvError,
    Episode,
    JudgeError,
    Message,
    Reward,
    SamplingParams,
    Task,
    WorkflowError,
    boundary,
    call_user_code,
    stable_seed,
)
from astune.workflow import AstuneProxy, EpisodeModel, Workflow, WorkflowOutput

INTERRUPTED = "interrupted"

_RELEASE_S = 30.0
"""Seconds to wait for an environment to close; one that is stuck in a step never will."""

_PACKAGE = str(Path(__file__).parents[1])


class EpisodeInterrupted(asyncio.CancelledError):
    """The cancellation of an episode, with what was recorded of it until then."""

    def __init__(self, episode: Episode) -> None:
        super().__init__()
        self.episode = episode


class EpisodeRunner:
    """Runs requests one by one; many runs may overlap on one event loop."""

    def __init__(
        self,
        engine: InferenceEngine,
        renderer: Renderer,
        workflow_class: type[Workflow],
        judge: Judge | None,
        config: AstuneConfig,
        observer: RolloutObserver,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._workflow_class = workflow_class
        self._judge = judge
        self._config = config
        self._observer = observer

    async def run(self, request: EpisodeRequest, *, waited_s: float = 0.0) -> Episode:
        """One attempt. The request's engine session is open before and closed after by the caller.

        Raises:
            EpisodeInterrupted: the running task was cancelled; nothing of the episode runs any more.
        """
        attempt = _Attempt(self, request)
        self._observer.on_started(request.episode_id, request.task)
        start = time.perf_counter()
        interrupted = False
        error: str | None = None
        try:
            rollout = self._config.rollout
            await supervise(
                attempt.play(),
                timeout_s=rollout.episode_timeout_s,
                deadline=lambda: f"episode {request.episode_id}, which waited for its {attempt.phase},",
                stop=lambda: attempt.model.close("it was stopped"),
                hint="raise rollout.episode_timeout_s if episodes may take that long",
            )
        except asyncio.CancelledError:
            interrupted, error = True, INTERRUPTED
        except AstuneError as failure:
            error = f"{type(failure).__name__}: {failure}"
        finally:
            attempt.model.close("it has ended")
            release_error = await attempt.release()
        episode = attempt.record(error or release_error)
        episode.timings |= {"wait": waited_s, "total": time.perf_counter() - start}
        if interrupted:
            raise EpisodeInterrupted(episode)
        return episode


class _Attempt:
    """The state of one run, and its steps in order."""

    def __init__(self, runner: EpisodeRunner, request: EpisodeRequest) -> None:
        config = runner._config
        self._runner = runner
        self._config = config
        self._request = request
        self._seed = stable_seed(config.seed, request.episode_id)
        self._tracker = ContextTracker(runner._renderer, config.rollout.max_model_len)
        self._environment: EnvironmentHandle | None = None
        self._proxy: AstuneProxy | None = None
        self._reward: Reward | None = None
        self._output = WorkflowOutput()
        self._judge_seconds = 0.0
        self.phase = "environment"
        self.model = EpisodeModel(
            runner._engine,
            self._tracker,
            session=request.episode_id,
            params=SamplingParams(
                max_tokens=config.rollout.max_response_length_in_one_turn,
                temperature=request.temperature,
                top_p=config.rollout.top_p,
                stop_token_ids=runner._renderer.stop_token_ids,
                seed=self._seed,
            ),
            max_model_len=config.rollout.max_model_len,
            timeout_s=config.rollout.call_timeout_s,
            on_call=lambda begins: self._wait("model" if begins else "workflow"),
        )

    async def play(self) -> None:
        """Environment, workflow, judge."""
        self._wait("environment")
        init_messages = await self._create_environment()
        workflow = self._runner._workflow_class(self._config)
        rollout = self._config.rollout
        self._proxy = AstuneProxy(
            self.model,
            self._environment,
            task=self._request.task,
            init_messages=init_messages,
            trainable_targets=workflow.trainable_targets,
            model_name=self._config.model.path,
            disable_tools=rollout.agentscope_disable_toolcalls,
            empty_on_overflow=workflow.empty_on_overflow,
            max_steps=rollout.multi_turn.max_steps,
            timeout_s=rollout.call_timeout_s,
            on_wait=self._wait,
        )
        self._wait("workflow")
        await self._execute(workflow, self._proxy)
        self.model.require_open()
        self._require_something_to_train(workflow)
        self._wait("judge")
        self._reward = await self._judge(self._proxy)

    async def release(self) -> str | None:
        """Give the environment back; says what went wrong, for an episode that is otherwise fine."""
        if self._environment is None:
            return None
        what = f"releasing the environment of task {self._request.task.task_id}"
        try:
            async with boundary(EnvError, what, timeout_s=min(_RELEASE_S, self._config.rollout.call_timeout_s)):
                await self._environment.release()
        except AstuneError as failure:
            return f"{type(failure).__name__}: {failure}"
        return None

    def record(self, error: str | None) -> Episode:
        """The episode as it is now."""
        reward = self._reward if error is None else None
        status = "error" if reward is None else "success" if reward.is_success else "failed"
        truncated = self._proxy is not None and (self._proxy.context_overflow or self._proxy.turns_exhausted)
        if reward is not None and truncated:
            status = "truncated"
        episode = self._request.episode(seed=self._seed, forest=self._tracker.forest, status=status, error=error)
        episode.reward = reward
        episode.metrics = self._metrics()
        episode.timings = {"model": self.model.seconds, "judge": self._judge_seconds}
        if self._proxy is not None:
            episode.timings["env"] = self._proxy.env_seconds
            episode.judge_inputs = _jsonable(self._proxy.get_judge_input_dictionary())
        return episode

    async def _create_environment(self) -> list[Message]:
        task = self._request.task
        what = f"creating the environment of task {task.task_id}"
        async with boundary(EnvError, what, timeout_s=self._config.rollout.call_timeout_s):
            # One seed a task: the episodes of a group meet the same world.
            handle = open_environment(task.env_type, task, stable_seed(self._config.seed, task.task_id))
            self._environment = handle
            state = await handle.create() if handle is not None else None
        return state.state if state is not None and state.state else _opening(task)

    async def _execute(self, workflow: Workflow, proxy: AstuneProxy) -> None:
        """Run the user's agent; a failure of engine or environment counts even where the agent swallowed it."""
        task = self._request.task
        name = type(workflow).__name__
        try:
            output = await call_user_code(workflow.execute, task, proxy, name=f"astune-{self._request.episode_id}")
        except ContextOverflow:
            output = None
        except AstuneError:
            raise
        except Exception as cause:
            raise WorkflowError(
                f"{name} on task {task.task_id}{_where(cause)}: {type(cause).__name__}: {cause}",
                hint="this is in the workflow's own code, or in what it calls",
            ) from cause
        if proxy.failure is not None:
            raise proxy.failure
        if output is not None and not isinstance(output, WorkflowOutput):
            raise WorkflowError(
                f"{name}.execute returned {type(output).__name__}", hint="return a WorkflowOutput or nothing"
            )
        self._output = output or self._output

    def _require_something_to_train(self, workflow: Workflow) -> None:
        forest = self._tracker.forest
        if forest.sampled_tokens() == 0:
            if self.model.overflow is not None:
                raise self.model.overflow
            raise WorkflowError(
                f"{type(workflow).__name__} on task {self._request.task.task_id} never called the model",
                hint="pass the proxy to your agent as its model, or await proxy.achat(messages)",
            )
        if not any(node.trainable for node in forest.nodes):
            agents = sorted({node.agent for node in forest.nodes if node.sampled})
            raise WorkflowError(
                f"{type(workflow).__name__} trains {sorted(workflow.trainable_targets or ())}, "
                f"but the model was called by {agents}",
                hint="name the agents with proxy.as_agentscope_model(agent_name, target_tag), or train them all",
            )

    async def _judge(self, proxy: AstuneProxy) -> Reward:
        own = workflow_reward(self._output, self._runner._workflow_class.__name__)
        if own is not None:
            return own
        if self._runner._judge is None:
            raise JudgeError(
                "there is neither a judge nor a reward from the workflow",
                hint="set task_judge.judge_protocol, or return WorkflowOutput(reward=...) from the workflow",
            )
        start = time.perf_counter()
        try:
            return await ask_judge(
                self._runner._judge,
                self._request.task,
                environment=self._environment,
                forest=self._tracker.forest,
                registered=proxy.get_judge_input_dictionary(),
                timeout_s=self._config.rollout.call_timeout_s,
            )
        finally:
            self._judge_seconds = time.perf_counter() - start

    def _metrics(self) -> dict[str, float]:
        forest = self._tracker.forest
        sampled = [node for node in forest.nodes if node.sampled]
        own = {name: float(value) for name, value in self._output.metrics.items()}
        return own | {
            "turns": float(len(sampled)),
            "env_steps": float(self._proxy.n_steps if self._proxy is not None else 0),
            "sampled_tokens": float(forest.sampled_tokens()),
            "read_tokens": float(sum(len(node.prompt_delta) for node in forest.nodes)),
            "cut_answers": float(sum(node.finish_reason == "length" for node in sampled)),
            "branches": float(sum(node.fork_cause is not None for node in forest.nodes)),
        }

    def _wait(self, what: str) -> None:
        self.phase = what
        self._runner._observer.on_waits_for(self._request.episode_id, what)


def _opening(task: Task) -> list[Message]:
    return list(task.init_messages) or [{"role": "user", "content": task.main_query}]


def _where(cause: BaseException) -> str:
    """The innermost line outside of installed packages, where the user will look first."""
    frames = traceback.extract_tb(cause.__traceback__)
    foreign = ("site-packages", _PACKAGE, "<frozen")
    own = [frame for frame in frames if not any(part in frame.filename for part in foreign)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _jsonable(inputs: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in inputs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        kept[key] = value
    return kept
