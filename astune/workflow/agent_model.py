"""The episode's model for one agent: as an AgentScope model, framework-free by `achat`, and for the gateway."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from astune.context_tracker.agentscope import (
    Usage,
    chat_response,
    wants_finish_call,
    without_finish_calls,
    without_finish_tool,
)
from astune.gateway.chat_completions import ChatRequest, Sampled
from astune.gateway.live_answers import LiveAnswer
from astune.renderers import Tool
from astune.schema import ContextOverflow, FinishReason, Message, WorkflowError, is_on_loop, shown_value
from astune.workflow.agentscope_guest import ChatModel, is_two, model_at
from astune.workflow.episode_model import Answer, EpisodeModel, ModelCall
from astune.workflow.outside import OutsideModel
from astune.workflow.response_format import ResponseFormat, grammar_of, parsed
from astune.workflow.tool_choice import ToolChoice, checked, tools_to_call

if TYPE_CHECKING:
    from pydantic import BaseModel

    from astune.gateway.in_process import InProcessGateway
    from astune.gateway.server import GatewayServer

DEFAULT_AGENT = "agent"
"""The name and tag of an agent that uses the proxy itself as its model."""


class OpenAIAddress(NamedTuple):
    """Base URL and key for a client of OpenAI's API."""

    base_url: str
    api_key: str


class Answering(NamedTuple):
    """A policy that answers for an agent, and whether its tokens are trained; or an endpoint in the policy's place."""

    policy: str
    trainable: bool
    outside: OutsideModel | None = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer with its token-level details.

    `finish_reason` is "length" if the answer reached its limit, and None if nothing was sampled because the prompt did
    not fit. `logprobs` has the natural log-probability of each token, control tokens too.
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
        if answer.stopped_by is not None:
            finish_reason = "stop"
        return cls(answer.message, finish_reason, answer.usage.read_tokens, len(logprobs), logprobs)


_EMPTY_ANSWERS = 20
"""Prompts beyond the context that get an empty answer; an agent that continues gets the error."""


class AgentModel(ChatModel):
    """The episode's model for one agent: callable as an AgentScope 1.x model, and framework-free by `achat`."""

    stream = False

    def __init__(
        self,
        model: EpisodeModel,
        *,
        agent: str,
        empty_on_overflow: bool,
        answering: Callable[[str], Answering],
    ) -> None:
        """
        Args:
            answering: says what answers a request that names a `model`; it names "" where it does not come by HTTP.
        """
        self.model_name = model.config.model.path
        self._model = model
        self._agent = agent
        self._answering = answering
        self._disable_tools = model.config.rollout.agentscope_disable_toolcalls
        self._empty_on_overflow = empty_on_overflow

    async def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        tool_choice: str | None = None,
        structured_model: type[BaseModel] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Answer an AgentScope agent with a `ChatResponse`.

        With a `structured_model` the answer is a JSON text of that model, whose fields are the response's `metadata`,
        and no tools are offered. `metadata` is None where the answer was cut, as AgentScope's agents expect it.
        `tool_choice` is "auto", "none", "required" or "any", or the name of a tool that has to be called. The default
        is "auto", or "required" if an agent of AgentScope 1.0.7 can only finish by a call. Further keyword arguments,
        such as a temperature, are ignored: the run decides on sampling.
        """
        if is_two():
            return await self._two(messages, tools=tools, tool_choice=tool_choice, **kwargs)
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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what agents of AgentScope 2.x read from a model, such as its formatter."""
            if name.startswith("_") or not is_two():
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return getattr(self._two, name)

    @functools.cached_property
    def _two(self) -> Any:
        """Model in the shape that agents of AgentScope 2.x take."""
        from astune.gateway.server import gateway

        base_url, key = self.served_at(gateway())
        return model_at(base_url, key, name=self.model_name, context_tokens=self._model.config.rollout.max_model_len)

    async def achat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Message:
        """Call the model with messages in OpenAI's format; return the answer as an assistant message.

        Args:
            response_format: format of the answer's text; an answer that reaches its length limit is incomplete.
            tool_choice: "auto", "none", "required", or the name of a tool that has to be called.
            stop: texts at which the answer ends; they are not part of the message.
        """
        return (await self._answer(self._asked(messages, tools, response_format, tool_choice, stop))).message

    async def aanswer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> ChatAnswer:
        """`achat` with details of the answer: why it ended, numbers of tokens, log-probabilities.

        Args:
            max_tokens: maximum tokens of the answer, if lower than `rollout.max_response_length_in_one_turn`.
        """
        asked = self._asked(messages, tools, response_format, tool_choice, stop)
        return ChatAnswer.of(await self._answer(replace(asked, max_tokens=_limit(max_tokens))))

    async def _answer(self, asked: ModelCall) -> Answer:
        try:
            return await self._model.call(asked)
        except ContextOverflow:
            if not self._empty_on_overflow or self._model.n_overflows > _EMPTY_ANSWERS:
                raise
            return Answer({"role": "assistant", "content": ""}, Usage(0, 0, 0.0))

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Message:
        """`achat` for synchronous workflows."""
        return self._answer_now(self._asked(messages, tools, response_format, tool_choice, stop)).message

    def _answer_now(self, asked: ModelCall) -> Answer:
        if is_on_loop():
            raise WorkflowError("chat() was called from async code", hint="write `await proxy.achat(messages)` there")
        return self._model.from_thread(self._answer(asked))

    def answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        tool_choice: ToolChoice | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> ChatAnswer:
        """`aanswer` for synchronous workflows."""
        asked = self._asked(messages, tools, response_format, tool_choice, stop)
        return ChatAnswer.of(self._answer_now(replace(asked, max_tokens=_limit(max_tokens))))

    def served_at(self, server: GatewayServer | InProcessGateway, key: str | None = None) -> OpenAIAddress:
        """An address and a new key of `server` for this agent, or the given one; the key dies with the episode."""
        key = server.keys.open(
            self.sample, key, streams_tokens=self.streams_tokens, count=self.count, admit=self._model.rate.admit
        )
        self._model.at_close(functools.partial(server.keys.close, key))
        return OpenAIAddress(server.base_url, key)

    @property
    def n_calls(self) -> int:
        return self._model.n_calls

    @property
    def session(self) -> str:
        return self._model.session

    @property
    def streams_tokens(self) -> bool:
        """Return whether an answer can be streamed while it is sampled."""
        return self._model.streams_tokens

    async def aclose(self, why: str) -> None:
        """Refuse further calls, and cancel those in progress."""
        await self._model.aclose(why)

    async def sample(self, request: ChatRequest, live: LiveAnswer | None) -> Sampled:
        """Answer a request of the gateway, which comes on the gateway's event loop."""
        await self._model.require_free_loop()
        asked = self._asked(
            request.messages, request.tools, request.response_format, request.tool_choice, request.stop, request.model
        )
        if request.logprobs and asked.outside is not None:
            raise WorkflowError(
                f"log-probabilities are not known of {asked.outside.base_url}, which answers for {self._agent}",
                hint="ask without logprobs",
            )
        if request.logprobs and not self._model.knows_logprobs:
            raise WorkflowError(
                "log-probabilities are not known with engine.type: openai, whose endpoint gives text only",
                hint="ask without logprobs, or set engine.type to in_process or vllm",
            )
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
            answer.stopped_by,
            completion.cached_tokens,
            completion.weights_version,
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
        stop: str | Sequence[str] | None = None,
        name: str = "",
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
        policy, trainable, outside = self._answering(name)
        return ModelCall(
            messages,
            offered,
            self._agent,
            trainable,
            grammar,
            must_call,
            policy=policy,
            stop=_texts(stop),
            outside=outside,
        )


def _texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop sequences, however they were written.

    Raises:
        WorkflowError: one is no text, or is empty.
    """
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) and text for text in texts):
        raise WorkflowError(f"stop is {stop!r}", hint="write a text or a list of texts, none of them empty")
    return texts


def _limit(max_tokens: Any) -> int | None:
    """
    Raises:
        WorkflowError: it is no whole number, or below 1.
    """
    if max_tokens is None:
        return None
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, Integral) or max_tokens < 1:
        raise WorkflowError(
            f"max_tokens is {shown_value(max_tokens)}",
            hint="write a whole number of at least 1, or leave it out for the run's limit",
        )
    return int(max_tokens)
