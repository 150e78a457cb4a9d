"""What a workflow is handed: the model, the environment and the way to tell the judge something.

The proxy is itself a model of AgentScope 1.x: `ReActAgent(model=proxy, ...)`. What it allows is inference and steps
for its own episode; it knows no reward of the episode and no weights (law 8).
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from astune.context_tracker.agentscope import (
    Usage,
    chat_response,
    wants_finish_call,
    without_finish_calls,
    without_finish_tool,
)
from astune.env_service import EnvironmentHandle, EnvStep
from astune.gateway.chat_completions import ChatRequest, Sampled
from astune.gateway.live_answers import LiveAnswer
from astune.renderers import Tool, text_of
from astune.schema import (
    AstuneError,
    ContextOverflow,
    DeadlineExceeded,
    EnvError,
    EpisodeCut,
    FinishReason,
    Message,
    Split,
    Task,
    WorkflowError,
    boundary,
    start_in_thread,
)
from astune.workflow.agentscope_guest import ChatModel, arrange_agentscope
from astune.workflow.env_turn import action_of, answers_of
from astune.workflow.episode_model import Answer, EpisodeModel, ModelCall
from astune.workflow.response_format import ResponseFormat, grammar_of, parsed
from astune.workflow.tool_choice import ToolChoice, checked, tools_to_call

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    from astune.gateway.server import GatewayServer

Observation = tuple[str, float, bool, dict[str, Any]]
"""What a step gives back: (observation, reward, terminate, info)."""

DEFAULT_AGENT = "agent"
"""The name and tag of an agent that uses the proxy itself as its model."""


class OpenAIAddress(NamedTuple):
    """What a client of OpenAI's API is configured with."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer with what is known of it.

    `finish_reason` is "length" where the answer reached its limit, and None where nothing was
    sampled, since the prompt did not fit. `logprobs` has the natural log-probability of each token, control tokens too.
    """

    message: Message
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[float, ...]

    @classmethod
    def of(cls, answer: Answer) -> ChatAnswer:
        completion = answer.completion
        logprobs = tuple(completion.logprobs) if completion is not None else ()
        finish_reason = completion.finish_reason if completion is not None else None
        return cls(answer.message, finish_reason, answer.usage.read_tokens, len(logprobs), logprobs)


_EMPTY_ANSWERS = 20
"""Prompts beyond the context that are answered with an empty message; an agent that goes on asking gets the error."""

_ENV_HINT = "the environment is stuck or too slow; raise rollout.call_timeout_s if that is expected"


class AgentModel(ChatModel):
    """The episode's model for one agent: callable as an AgentScope 1.x model, and framework-free by `achat`."""

    stream = False

    def __init__(
        self,
        model: EpisodeModel,
        *,
        agent: str,
        trainable: bool,
        model_name: str,
        disable_tools: bool,
        empty_on_overflow: bool,
    ) -> None:
        self.model_name = model_name
        self._model = model
        self._agent = agent
        self._trainable = trainable
        self._disable_tools = disable_tools
        self._empty_on_overflow = empty_on_overflow

    async def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        tool_choice: str | None = None,
        structured_model: type[BaseModel] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Answer an AgentScope agent, in AgentScope's `ChatResponse`.

        With a `structured_model` the answer is a JSON text of that model, whose fields are the response's `metadata`,
        and no tools are offered. `metadata` is None where the answer was cut, as AgentScope's agents expect it.
        `tool_choice` is "auto", "none", "required" or "any", or the name of a tool that has to be called. Nothing said
        is "auto", or "required" where an agent of AgentScope 1.0.7 can finish by a call only.
        Further keyword arguments, such as a temperature, are passed over: how to sample is the run's business.
        """
        if structured_model is not None:
            offered = []
        elif tool_choice in (None, "auto"):
            offered = without_finish_tool(tools)
        else:
            offered = list(tools or ())
        if tool_choice is None and wants_finish_call(offered):
            tool_choice = "required"
        history = without_finish_calls(messages)
        answer = await self._answer(self._asked(history, offered, structured_model, tool_choice if offered else None))
        response = chat_response(answer.message, answer.usage)
        if structured_model is not None:
            response.metadata = parsed(answer.message["content"], structured_model)
        return response

    async def achat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> Message:
        """Answer messages in the OpenAI shape with an assistant message.

        Args:
            response_format: what the answer's text must be; an answer that reaches its length limit ends before.
            tool_choice: "auto", "none", "required" or one tool; the answer is then a call, with the same limit.
        """
        return (await self._answer(self._asked(messages, tools, response_format, tool_choice))).message

    async def aanswer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        max_tokens: int | None = None,
    ) -> ChatAnswer:
        """`achat` with what is known of the answer: why it ended, its tokens, their log-probabilities.

        Args:
            max_tokens: tokens of the answer at most, where fewer than `rollout.max_response_length_in_one_turn`.
        """
        asked = self._asked(messages, tools, response_format, tool_choice)
        return ChatAnswer.of(await self._answer(replace(asked, max_tokens=max_tokens)))

    async def _answer(self, asked: ModelCall) -> Answer:
        try:
            return await self._model.call(asked)
        except ContextOverflow as overflow:
            return self._overflown(overflow)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> Message:
        """`achat` for synchronous workflows."""
        return self._answer_now(self._asked(messages, tools, response_format, tool_choice)).message

    def _answer_now(self, asked: ModelCall) -> Answer:
        if _on_event_loop():
            raise WorkflowError("chat() was called from async code", hint="write `await proxy.achat(messages)` there")
        try:
            return self._model.call_from_thread(asked)
        except ContextOverflow as overflow:
            return self._overflown(overflow)

    def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        max_tokens: int | None = None,
    ) -> ChatAnswer:
        """`aanswer` for synchronous workflows."""
        asked = self._asked(messages, tools, response_format, tool_choice)
        return ChatAnswer.of(self._answer_now(replace(asked, max_tokens=max_tokens)))

    def served_at(self, server: GatewayServer, key: str | None = None) -> OpenAIAddress:
        """An address and a new key of `server` for this agent, or the given one; the key dies with the episode."""
        key = server.keys.open(self.sample, key, streams_tokens=self._model.streams_tokens, count=self.count)
        self._model.at_close(functools.partial(server.keys.close, key))
        return OpenAIAddress(server.base_url, key)

    async def sample(self, request: ChatRequest, live: LiveAnswer | None) -> Sampled:
        """Answer a request of the gateway, which comes on the gateway's event loop."""
        await self._model.require_free_loop()
        asked = self._asked(request.messages, request.tools, request.response_format, request.tool_choice)
        answer = await self._model.call(replace(asked, max_tokens=request.longest_answer, live=live))
        completion = answer.completion
        if completion is None:
            raise WorkflowError("the model sampled nothing", hint="this is a defect of astune")
        return Sampled(
            answer.message,
            self._model.decoded(completion.token_ids) if request.logprobs else (),
            completion.logprobs,
            completion.finish_reason,
            answer.usage.read_tokens,
        )

    async def count(self, request: ChatRequest) -> int:
        """Tokens of the prompt that a request of the gateway would be answered from; nothing is sampled or recorded."""
        await self._model.require_free_loop()
        asked = self._asked(request.messages, request.tools, request.response_format, request.tool_choice)
        return await self._model.count(asked)

    def _asked(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        response_format: ResponseFormat | None,
        tool_choice: ToolChoice | None,
    ) -> ModelCall:
        known = () if self._disable_tools else checked(tools or ())
        offered = () if tool_choice == "none" else known
        must_call = () if self._disable_tools else tools_to_call(known, tool_choice)
        grammar = grammar_of(response_format)
        if grammar is not None and must_call:
            raise WorkflowError(
                "the model was called with a response_format and a tool_choice that forces a call",
                hint="ask for one of them: a call's form follows from its tool's parameters",
            )
        return ModelCall(messages, offered, self._agent, self._trainable, grammar, must_call)

    def _overflown(self, overflow: ContextOverflow) -> Answer:
        if not self._empty_on_overflow or self._model.n_overflows > _EMPTY_ANSWERS:
            raise overflow
        return Answer({"role": "assistant", "content": ""}, Usage(0, 0, 0.0))


class AstuneProxy(AgentModel):
    """One episode's model and environment.

    Args:
        trainable_targets: tags of the agents to train; None trains all.
        max_steps: environment steps after which the episode ends as truncated.
        on_wait: is told what the episode waits for.
        split: whether the episode is for training or for measuring.
        env_info: what the environment said of itself at its beginning.
    """

    def __init__(
        self,
        model: EpisodeModel,
        environment: EnvironmentHandle | None,
        *,
        task: Task,
        init_messages: Sequence[Message],
        trainable_targets: Collection[str] | None,
        model_name: str,
        disable_tools: bool,
        empty_on_overflow: bool,
        max_steps: int,
        timeout_s: float,
        on_wait: Callable[[str], None],
        split: Split = "train",
        env_info: dict[str, Any] | None = None,
    ) -> None:
        arrange_agentscope()
        super().__init__(
            model,
            agent=DEFAULT_AGENT,
            trainable=trainable_targets is None or DEFAULT_AGENT in trainable_targets,
            model_name=model_name,
            disable_tools=disable_tools,
            empty_on_overflow=empty_on_overflow,
        )
        self.task = task
        self.split: Split = split
        self.init_messages = list(init_messages)
        """How the conversation begins: the environment's first state, or else the task's messages or query."""
        self.env_info = env_info or {}
        """The `info` of the environment's first state; empty where there is no environment."""
        self.env_messages: list[Message] = []
        """What the environment answered last; a tool's result has the id of its call."""
        self.n_steps = 0
        self.env_seconds = 0.0
        self.turns_exhausted = False
        self._environment = environment
        self._trainable_targets = trainable_targets
        self._targets = {DEFAULT_AGENT: DEFAULT_AGENT}
        self._max_steps = max_steps
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._failure: AstuneError | None = None
        self._judge_inputs: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def episode_id(self) -> str:
        """The episode's name, unique within the run; another attempt has another."""
        return self._model.session

    @property
    def context_overflow(self) -> bool:
        """Whether a prompt did not fit any more; the episode then ends as truncated."""
        return isinstance(self._model.cut, ContextOverflow)

    @property
    def cut(self) -> EpisodeCut | None:
        """What cut the episode, which then ends as truncated: a prompt that did not fit, or a malformed call."""
        return self._model.cut

    @property
    def failure(self) -> AstuneError | None:
        """The first failure of engine or environment, also where the workflow swallowed it."""
        return self._model.failure or self._failure

    @property
    def targets(self) -> dict[str, str]:
        """The target tag of each agent by its name."""
        return dict(self._targets)

    def as_agentscope_model(self, agent_name: str, target_tag: str | None = None) -> AgentModel:
        """The model for one agent of several; it is trained if its tag is among the workflow's targets."""
        tag = target_tag if target_tag is not None else agent_name
        if self._targets.setdefault(agent_name, tag) != tag:
            raise WorkflowError(
                f"the agent {agent_name!r} was given the target tags {self._targets[agent_name]!r} and {tag!r}",
                hint="give agents of different tags different names",
            )
        return AgentModel(
            self._model,
            agent=agent_name,
            trainable=self._trainable_targets is None or tag in self._trainable_targets,
            model_name=self.model_name,
            disable_tools=self._disable_tools,
            empty_on_overflow=self._empty_on_overflow,
        )

    def as_oai_baseurl_apikey(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> OpenAIAddress:
        """An address and a key for one agent in any language: OpenAI's Chat Completions on this machine.

        The key allows inference in this episode alone and dies with it. With a client that blocks, write `execute` as
        an ordinary function: a blocked event loop cannot answer.
        """
        from astune.gateway.server import gateway

        return self.as_agentscope_model(agent_name, target_tag).served_at(gateway())

    @asynccontextmanager
    async def endpoint(
        self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None
    ) -> AsyncIterator[OpenAIAddress]:
        """An address and a key as `as_oai_baseurl_apikey`, for a child process: the key dies with the block.

        async with proxy.endpoint() as (base_url, api_key):
            process = await asyncio.create_subprocess_exec("agent", env=os.environ | {"OPENAI_API_KEY": api_key})
            await process.wait()
        """
        from astune.gateway.server import gateway

        address = self.as_oai_baseurl_apikey(agent_name, target_tag)
        try:
            yield address
        finally:
            gateway().keys.close(address.api_key)

    def as_openai_client(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> AsyncOpenAI:
        """OpenAI's asynchronous client, with the address and a key of `as_oai_baseurl_apikey`.

        Raises:
            WorkflowError: the package `openai` is not installed.
        """
        try:
            from openai import AsyncOpenAI
        except ImportError as cause:
            raise WorkflowError("as_openai_client needs the package openai", hint="pip install openai") from cause
        address = self.as_oai_baseurl_apikey(agent_name, target_tag)
        return AsyncOpenAI(base_url=address.base_url, api_key=address.api_key)

    def as_anthropic_client(self, agent_name: str = DEFAULT_AGENT, target_tag: str | None = None) -> AsyncAnthropic:
        """Anthropic's asynchronous client, as `as_openai_client`.

        Raises:
            WorkflowError: the package `anthropic` is not installed.
        """
        try:
            from anthropic import AsyncAnthropic
        except ImportError as cause:
            raise WorkflowError(
                "as_anthropic_client needs the package anthropic", hint="pip install anthropic"
            ) from cause
        address = self.as_oai_baseurl_apikey(agent_name, target_tag)
        return AsyncAnthropic(base_url=address.base_url.removesuffix("/v1"), api_key=address.api_key)

    async def agym_step(self, action: Message | str) -> Observation:
        """Step the episode's environment with the agent's message, its tool calls included.

        The observation is the text of `env_messages`.
        """
        environment, message = self._before_step(action)
        what = self._step_name
        start = time.perf_counter()
        try:
            async with boundary(EnvError, what, timeout_s=self._timeout_s, hint=_ENV_HINT):
                step = await environment.step(message)
        except AstuneError as failure:
            self._failure = self._failure or failure
            raise
        return self._after_step(step, message, start)

    def gym_step(self, action: Message | str) -> Observation:
        """`agym_step` for synchronous code; called from async code it holds up the other episodes meanwhile."""
        environment, message = self._before_step(action)
        what = self._step_name
        start = time.perf_counter()
        try:
            if environment.quick:
                step = environment.step_now(message)
            else:
                stepping = start_in_thread(lambda: environment.step_now(message), name="astune-gym-step")
                step = stepping.result(timeout=self._timeout_s)
        except TimeoutError as cause:
            self._failure = self._failure or DeadlineExceeded(
                f"{what} took longer than {self._timeout_s:g} s", hint=_ENV_HINT
            )
            raise self._failure from cause
        except AstuneError as failure:
            self._failure = self._failure or failure
            raise
        return self._after_step(step, message, start)

    def waits_for(self, what: str) -> None:
        """Name what the episode waits for from now on, for displays and for the error at its deadline."""
        self._on_wait(what)

    def update_judge_input_dictionary(self, **inputs: Any) -> None:
        """Register what the judge shall get beside the episode itself, for instance `final_answer=...`."""
        self._model.require_open()
        with self._lock:
            self._judge_inputs |= inputs

    def get_judge_input_dictionary(self) -> dict[str, Any]:
        """What was registered so far."""
        with self._lock:
            return dict(self._judge_inputs)

    @property
    def _step_name(self) -> str:
        return f"step {self.n_steps} of the environment of task {self.task.task_id}"

    def _before_step(self, action: Message | str) -> tuple[EnvironmentHandle, Message]:
        self._model.require_open()
        if self._environment is None:
            raise WorkflowError(
                f"gym_step was called, but task {self.task.task_id} has no environment",
                hint="give the task an env_type, such as calculator, or leave gym_step out",
            )
        if self.turns_exhausted:
            raise WorkflowError(
                f"gym_step was called after it had ended the episode at {self._max_steps} steps",
                hint="leave the loop when gym_step says terminate",
            )
        message = action_of(action)
        with self._lock:
            self.n_steps += 1
        self._on_wait("environment")
        return self._environment, message

    def _after_step(self, step: EnvStep, action: Message, start: float) -> Observation:
        self._on_wait("workflow")
        with self._lock:
            self.env_seconds += time.perf_counter() - start
        self.turns_exhausted = not step.is_terminated and self.n_steps >= self._max_steps
        self.env_messages = answers_of(step.state, action)
        observation = "\n".join(text_of(message.get("content")) for message in step.state)
        return observation, step.reward, step.is_terminated or self.turns_exhausted, step.info


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
