"""The proxy that a workflow receives: the model, the environment, and the judge's input.

The proxy is itself a model of AgentScope 1.x: `ReActAgent(model=proxy, ...)`. It allows only inference and steps for
its own episode; it has no access to the episode's reward or to weights (law 8).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from astune.config.league import PastPlayer
from astune.env_service import EnvironmentHandle, EnvStep
from astune.renderers import text_of
from astune.schema import (
    AstuneError,
    ContextOverflow,
    DeadlineExceeded,
    EnvError,
    EpisodeCut,
    Message,
    Split,
    Task,
    WorkflowError,
    boundary,
    imported,
    start_in_thread,
)
from astune.workflow.agent_model import DEFAULT_AGENT, AgentModel, Answering, OpenAIAddress
from astune.workflow.agentscope_guest import arrange_agentscope
from astune.workflow.env_turn import action_of, answers_of
from astune.workflow.episode_model import EpisodeModel
from astune.workflow.outside import OutsideModel

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

Observation = tuple[str, float, bool, dict[str, Any]]
"""Result of a step: (observation, reward, terminate, info)."""

_ENV_HINT = "the environment is stuck or too slow; raise rollout.call_timeout_s if that is expected"


class AstuneProxy(AgentModel):
    """An episode's model and environment.

    Args:
        trainable_targets: tags of the agents to train; None trains all.
        on_wait: called with what the episode waits for.
        split: whether the episode is for training or for measuring.
        env_info: `info` of the environment's first state.
        rng: the episode's random generator.
        repeat: which of its group's episodes it is, from 0.
        past: who is played by an earlier version of itself.
    """

    def __init__(
        self,
        model: EpisodeModel,
        environment: EnvironmentHandle | None,
        *,
        task: Task,
        init_messages: Sequence[Message],
        trainable_targets: Collection[str] | None,
        empty_on_overflow: bool,
        on_wait: Callable[[str], None],
        split: Split = "train",
        env_info: dict[str, Any] | None = None,
        rng: random.Random | None = None,
        repeat: int = 0,
        past: PastPlayer | None = None,
    ) -> None:
        arrange_agentscope()
        self._past = past
        self._config = model.config
        self._trainable_targets = trainable_targets
        self._fallbacks: dict[str, str | OutsideModel] = {}
        super().__init__(
            model,
            agent=DEFAULT_AGENT,
            empty_on_overflow=empty_on_overflow,
            answering=lambda _: self._who_answers(DEFAULT_AGENT),
        )
        self.task = task
        """The episode's task."""
        self.split: Split = split
        """Whether the episode is for training (`train`) or for measuring (`validation`)."""
        self.rng = rng or random.Random()
        """The episode's random generator, for deals, roles and dice. Its seed depends on the run's seed and the
        task's id, so it is the same for all episodes of a group, and for the same task at a later step."""
        self.repeat = repeat
        """Index of the episode in its group, from 0; a workflow may use it to swap seats or roles within the group."""
        self.init_messages = list(init_messages)
        """Initial messages: the environment's first state, or else the task's messages or query."""
        self.env_info = env_info or {}
        """The `info` of the environment's first state; empty without an environment."""
        self.env_messages: list[Message] = []
        """Latest response of the environment; a tool's result has the id of its call."""
        self.n_steps = 0
        self.env_seconds = 0.0
        self.turns_exhausted = False
        self._environment = environment
        self._targets = {DEFAULT_AGENT: DEFAULT_AGENT}
        self._on_wait = on_wait
        self._failure: AstuneError | None = None
        self._judge_inputs: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def episode_id(self) -> str:
        """The episode's id, unique within the run; each attempt has a new one."""
        return self._model.session

    @property
    def context_overflow(self) -> bool:
        """Whether a prompt no longer fits; the episode then ends as truncated."""
        return isinstance(self._model.cut, ContextOverflow)

    @property
    def cut(self) -> EpisodeCut | None:
        """Cause that cut the episode, which then ends as truncated: a prompt that did not fit, or a malformed call."""
        return self._model.cut

    @property
    def answers(self) -> int:
        """Number of the model's answers in this episode."""
        return self._model.n_answers

    @property
    def failure(self) -> AstuneError | None:
        """The first failure of engine or environment, also where the workflow swallowed it."""
        return self._model.failure or self._failure

    @property
    def targets(self) -> dict[str, str]:
        """The target tag of each agent by its name."""
        return dict(self._targets)

    def as_agentscope_model(
        self,
        agent_name: str,
        target_tag: str | None = None,
        fallback_model: str | Mapping[str, Any] | None = None,
    ) -> AgentModel:
        """Return the model for one agent of several; it is trained if its tag is among the workflow's targets.

        Args:
            target_tag: its tag for rewards; also selects its policy if the run has several (`models`).
            fallback_model: what answers if the tag is not trained: a policy of the run, or a model behind an
                OpenAI-compatible endpoint, as its address or as a mapping with `base_url`, `model` and `api_key_env`.
                None uses the tag's own policy.

        Raises:
            WorkflowError: the agent has another tag, or there is no such policy.
            ConfigError: the endpoint's address is invalid.
        """
        known = self._targets.get(agent_name)
        tag = target_tag if target_tag is not None else known or agent_name
        if known not in (None, tag):
            raise WorkflowError(
                f"the agent {agent_name!r} was given the target tags {known!r} and {tag!r}",
                hint="give agents of different tags different names; a tag that is known late is given by proxy.tag",
            )
        if fallback_model is not None:
            self._fallbacks[agent_name] = self._fallback(agent_name, fallback_model)
        self._targets[agent_name] = tag
        return AgentModel(
            self._model,
            agent=agent_name,
            empty_on_overflow=self._empty_on_overflow,
            answering=lambda _: self._who_answers(agent_name),
        )

    def tag(self, agent_name: str, target_tag: str) -> None:
        """Assign an agent's target tag, for instance its role in a game, at any time before it speaks.

        Raises:
            WorkflowError: the agent has spoken under another tag.
        """
        if self._targets.get(agent_name, agent_name) != target_tag and self._model.has_called(agent_name):
            raise WorkflowError(
                f"the agent {agent_name!r} has spoken already, and was to get the target tag {target_tag!r}",
                hint="tag agents before they call the model for the first time",
            )
        self._targets[agent_name] = target_tag

    def _fallback(self, agent: str, given: str | Mapping[str, Any]) -> str | OutsideModel:
        """The policy of that name, or else the model behind that endpoint."""
        if isinstance(given, str) and "://" not in given and given not in self._config.models:
            raise WorkflowError(
                f"the agent {agent!r} has the fallback_model {given!r}, which is not a policy of the run",
                hint="name one of `models` in the configuration, or an endpoint by its address",
            )
        return given if isinstance(given, str) and given in self._config.models else OutsideModel.of(given)

    def _who_answers(self, agent: str) -> Answering:
        tag = self._targets[agent]
        trained = self._trainable_targets is None or tag in self._trainable_targets
        if not trained and (fallback := self._fallbacks.get(agent)) is not None:
            if isinstance(fallback, OutsideModel):
                return Answering("", False, fallback)
            return Answering(fallback if self._config.models[fallback].has_weights else "", False)
        policy = self._config.policy_of(tag)
        if self._past is not None and self._past.plays(policy, tag):
            return Answering(self._past.adapter, False)
        return Answering(policy, trained and self._config.is_trained(policy))

    def as_oai_baseurl_apikey(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> OpenAIAddress:
        """An address and a key of OpenAI's API for one agent in any language, on this machine.

        The key allows inference in this episode only, and expires with it. For a blocking client, write `execute` as
        an ordinary function: a blocked event loop cannot answer.
        """
        from astune.gateway.server import gateway

        return self.as_agentscope_model(agent_name, target_tag).served_at(gateway())

    @asynccontextmanager
    async def endpoint(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None
    ) -> AsyncIterator[OpenAIAddress]:
        """An address and a key as `as_oai_baseurl_apikey`, for a child process; the key expires with the block.

            async with proxy.endpoint() as (base_url, api_key):
                own = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
                process = await asyncio.create_subprocess_exec("agent", env=os.environ | own)
                await process.wait()

        Without the block, use `as_oai_baseurl_apikey`.
        """
        from astune.gateway.server import gateway

        address = self.as_oai_baseurl_apikey(agent_name, target_tag)
        try:
            yield address
        finally:
            gateway().keys.close(address.api_key)

    def as_openai_client(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> AsyncOpenAI:
        """OpenAI's asynchronous client for one agent's model, without a socket. Frameworks that accept such a client
        work with it unchanged, including streams.

        Raises:
            WorkflowError: the package `openai` is not installed.
        """
        return self._sdk_client("openai", "AsyncOpenAI", agent_name, target_tag)

    def as_anthropic_client(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> AsyncAnthropic:
        """Anthropic's asynchronous client, as `as_openai_client`.

        Raises:
            WorkflowError: the package `anthropic` is not installed.
        """
        return self._sdk_client("anthropic", "AsyncAnthropic", agent_name, target_tag, path="")

    def _sdk_client(
        self, package: str, client: str, agent_name: str, target_tag: str | None, *, path: str = "/v1"
    ) -> Any:
        """A client of an SDK for one agent's model; `path` is where its addresses begin."""
        from astune.gateway.in_process import in_process_gateway

        sdk = imported(package, needed_by=f"as_{package}_client", error=WorkflowError, hint=f"pip install {package}")
        server = in_process_gateway()
        base_url, key = self.as_agentscope_model(agent_name, target_tag).served_at(server)
        return getattr(sdk, client)(
            base_url=base_url.removesuffix("/v1") + path,
            api_key=key,
            http_client=server.client(sdk.DefaultAsyncHttpxClient),
        )

    async def agym_step(self, action: Message | str) -> Observation:
        """Step the episode's environment with the agent's message, its tool calls included.

        The observation is the text of `env_messages`.
        """
        environment, message = self._before_step(action)
        with self._stepping() as (what, timeout_s):
            async with boundary(EnvError, what, timeout_s=timeout_s, hint=_ENV_HINT):
                step = await environment.step(message)
        return self._after_step(step, message)

    def gym_step(self, action: Message | str) -> Observation:
        """`agym_step` for synchronous code; async code blocks the other episodes while it is called."""
        environment, message = self._before_step(action)
        with self._stepping() as (what, timeout_s):
            try:
                if environment.quick:
                    step = environment.step_now(message)
                else:
                    stepping = start_in_thread(lambda: environment.step_now(message), name="astune-gym-step")
                    step = stepping.result(timeout=timeout_s)
            except TimeoutError as cause:
                raise DeadlineExceeded(f"{what} took longer than {timeout_s:g} s", hint=_ENV_HINT) from cause
        return self._after_step(step, message)

    def waits_for(self, what: str) -> None:
        """Name what the episode waits for from now on, for displays and for the error at its deadline."""
        self._on_wait(what)

    def update_judge_input_dictionary(self, **inputs: Any) -> None:
        """Register input for the judge in addition to the episode itself, for instance `final_answer=...`."""
        self._model.require_open()
        with self._lock:
            self._judge_inputs |= inputs

    def get_judge_input_dictionary(self) -> dict[str, Any]:
        """Return the registered input."""
        with self._lock:
            return dict(self._judge_inputs)

    @contextmanager
    def _stepping(self) -> Iterator[tuple[str, float]]:
        """The name of a step, and its seconds at most. Its failure counts also where the workflow swallows it."""
        start = time.perf_counter()
        try:
            what = f"step {self.n_steps} of the environment of task {self.task.task_id}"
            yield what, self._config.rollout.call_timeout_s
        except AstuneError as failure:
            self._failure = self._failure or failure
            raise
        with self._lock:
            self.env_seconds += time.perf_counter() - start

    def _before_step(self, action: Message | str) -> tuple[EnvironmentHandle, Message]:
        self._model.require_open()
        if self._environment is None:
            raise WorkflowError(
                f"gym_step was called, but task {self.task.task_id} has no environment",
                hint="give the task an env_type, such as calculator, or leave gym_step out",
            )
        if self.turns_exhausted:
            most = self._config.rollout.multi_turn.max_steps
            raise WorkflowError(
                f"gym_step was called after it had ended the episode at {most} steps",
                hint="leave the loop when gym_step returns terminate=True",
            )
        message = action_of(action)
        with self._lock:
            self.n_steps += 1
        self._on_wait("environment")
        return self._environment, message

    def _after_step(self, step: EnvStep, action: Message) -> Observation:
        self._on_wait("workflow")
        self.turns_exhausted = not step.is_terminated and self.n_steps >= self._config.rollout.multi_turn.max_steps
        self.env_messages = answers_of(step.state, action)
        observation = "\n".join(text_of(message.get("content")) for message in step.state)
        return observation, step.reward, step.is_terminated or self.turns_exhausted, step.info
