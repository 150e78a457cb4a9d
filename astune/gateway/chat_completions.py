"""OpenAI's Chat Completions, read and written: https://platform.openai.com/docs/api-reference/chat.

Unsupported keys are refused by name. The run decides how to sample: a temperature and the like are accepted and
overridden, since agents send them by habit, and the answer's header names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from astune.gateway.live_answers import LiveAnswer, Sent
from astune.renderers.settled import Settled, SettledCall
from astune.schema import ContextOverflow, MalformedCall, Message, WorkflowError

OVERRIDDEN = frozenset(
    {
        "temperature",
        "top_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "verbosity",
        "prediction",
    }
)
"""Sampling parameters, which are ignored since the run's configuration decides."""
WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Parameters that change no token."""
MAX_ANSWERS = 16
MAX_STOPS = 64
StopText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_NOTHING: tuple[Any, ...] = (None, [], {})
Shape = TypeVar("Shape", bound=BaseModel)
Conversations = Mapping[str, list[Message]]
"""The conversations that an agent may go on from by the id of the answer that ends them."""


class Body(BaseModel):
    """A part of a request, strictly typed; other keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Function(Body):
    name: str = Field(min_length=1)
    arguments: str


class _Call(Body):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(Body):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


_MESSAGES = TypeAdapter(list[_Message])


def _checked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without what SDKs add: empty keys, a stream's numbering, and parsed values."""
    plain = [
        {key: message[key] for key in message if (message[key] not in _NOTHING or key == "content") and key != "parsed"}
        for message in messages
    ]
    for message in plain:
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [_plain_call(call) for call in calls]
    _MESSAGES.validate_python(plain)
    return plain


def _plain_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    plain = {key: call[key] for key in call if key != "index"}
    if isinstance(function := plain.get("function"), dict):
        plain["function"] = {key: function[key] for key in function if key != "parsed_arguments"}
    return plain


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class ChatRequest(Body):
    """The keys of a request that decide what is asked."""

    model: str
    messages: Annotated[list[dict[str, Any]], AfterValidator(_checked)] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=MAX_ANSWERS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[list[StopText] | None, BeforeValidator(_listed)] = Field(default=None, max_length=MAX_STOPS)
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None
    parallel_tool_calls: Literal[True] | None = None
    modalities: list[Literal["text"]] | None = None

    @property
    def conversation(self) -> list[Message] | None:
        """The messages that a later request may continue from by the answer's id; None where they are not kept."""
        return None

    @property
    def longest_answer(self) -> int | None:
        """Tokens that the agent wants at most; None where it leaves that to the run."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer of the model, and what its tokens were."""

    message: Message
    token_texts: Sequence[str]
    logprobs: Sequence[float]
    finish_reason: Literal["stop", "length"]
    read_tokens: int
    stopped_by: str | None = None
    """The stop sequence that ended it."""
    cached_tokens: int = 0
    """Tokens of the prompt that the engine had computed before."""
    weights_version: int | None = None
    """Version of the weights that sampled it."""

    @property
    def settled(self) -> Settled:
        """All of it."""
        calls = (
            SettledCall(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in self.message.get("tool_calls", ())
        )
        return Settled(self.message.get("reasoning_content") or "", self.message.get("content") or "", tuple(calls))

    @property
    def openai_finish_reason(self) -> str:
        finish_reason = "stop" if self.stopped_by is not None else self.finish_reason
        return "tool_calls" if finish_reason == "stop" and self.message.get("tool_calls") else finish_reason


class Refused(WorkflowError):
    """A request that cannot be answered as it is; `key` is the part at fault."""

    def __init__(self, message: str, *, key: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


def validated(
    shape: type[Shape], body: Any, overridden: Collection[str], without_effect: Collection[str]
) -> tuple[Shape, list[str]]:
    """A body in a dialect's shape, and which of its keys are overridden; other keys that say nothing are left out.

    Raises:
        Refused: it is none, or has a key that is not offered.
    """
    if not isinstance(body, dict):
        raise Refused("the body is expected to be a JSON object")
    asked = {key: value for key, value in body.items() if key not in (*overridden, *without_effect)}
    empty = [key for key in asked if key not in shape.model_fields and asked[key] in _NOTHING]
    request = shaped(shape, {key: asked[key] for key in asked if key not in empty})
    return request, sorted(key for key in body.keys() & set(overridden) if body[key] is not None)


def shaped(shape: type[Shape], asked: dict[str, Any]) -> Shape:
    """The keys of a request in their shape.

    Raises:
        Refused: they do not have it.
    """
    try:
        return shape.model_validate(asked)
    except ValidationError as cause:
        first = cause.errors()[0]
        key = ".".join(map(str, first["loc"]))
        known = "is not offered here" if first["type"] == "extra_forbidden" else f"is wrong: {first['msg']}"
        raise Refused(f"{key} {known}", key=key, hint="docs/en/any_agent.md lists what is offered") from cause


def plain_text(content: Any, place: str) -> str:
    """A text, or the text of blocks.

    Raises:
        Refused: it holds something else; `place` is where.
    """
    if isinstance(content, str):
        return content
    match content:
        case [*blocks] if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in blocks):
            return "".join(block["text"] for block in blocks)
    raise Refused(f"{place}: only text is offered here", key=place)


def require_tools(request: ChatRequest) -> None:
    """Raises Refused where a call is asked for and no tool is given."""
    if request.tool_choice is not None and not request.tools and request.tool_choice not in ("none", "auto"):
        raise Refused("tool_choice is given without tools", key="tool_choice")


def read_request(body: Any, kept: Conversations) -> tuple[ChatRequest, list[str]]:
    """The request, and which of its keys are overridden.

    Raises:
        Refused: it is no request of this dialect, or asks for what is not there.
    """
    request, overridden = validated(ChatRequest, body, OVERRIDDEN, WITHOUT_EFFECT)
    require_tools(request)
    return request, overridden


def answer_of(request: ChatRequest, answers: Sequence[Sampled], *, answer_id: str) -> dict[str, Any]:
    """A `chat.completion`."""
    choices = [
        {
            "index": index,
            "message": _message_of(sampled.message),
            "logprobs": _logprobs_of(sampled) if request.logprobs else None,
            "finish_reason": sampled.openai_finish_reason,
        }
        for index, sampled in enumerate(answers)
    ]
    return _head(request, answer_id, "chat.completion") | {"choices": choices, "usage": _usage_of(answers)}


class ChatStream:
    """`chat.completion.chunk`s: of each answer its role, its text and its calls as they come, and its end; then the
    usage. Log-probabilities come with the end of an answer."""

    def __init__(self, request: ChatRequest, answer_id: str) -> None:
        self._logprobs = bool(request.logprobs)
        self._wants_usage = request.stream_options is not None and request.stream_options.include_usage
        head = _head(request, answer_id, "chat.completion.chunk")
        self._head = head | ({"usage": None} if self._wants_usage else {})
        self._sent: dict[int, Sent] = {}

    def more(self, live: Sequence[LiveAnswer]) -> Iterator[str]:
        for index, answer in enumerate(live):
            if answer.begun:
                yield from self._rest(index, answer.settled())

    def end(self, answers: Sequence[Sampled]) -> Iterator[str]:
        for index, sampled in enumerate(answers):
            yield from self._rest(index, sampled.settled, ended=True)
            if self._logprobs:
                yield self._chunk(index, {}, logprobs=_logprobs_of(sampled))
            yield self._chunk(index, {}, sampled.openai_finish_reason)
        if self._wants_usage:
            yield _event(self._head | {"choices": [], "usage": _usage_of(answers)})
        yield "data: [DONE]\n\n"

    def broken(self, failure: Exception) -> str:
        return _event(error_of(failure, 500))

    def _rest(self, index: int, part: Settled, *, ended: bool = False) -> Iterator[str]:
        if index not in self._sent:
            self._sent[index] = Sent()
            yield self._chunk(index, {"role": "assistant", "content": ""})
        rest = self._sent[index].rest(part, ended=ended)
        if rest.reasoning:
            yield self._chunk(index, {"reasoning_content": rest.reasoning})
        if rest.content:
            yield self._chunk(index, {"content": rest.content})
        for number, arguments, begun in rest.calls:
            if begun is not None:
                function = {"name": begun.name, "arguments": ""}
                call = {"index": number, "id": begun.id, "type": "function", "function": function}
                yield self._chunk(index, {"tool_calls": [call]})
            if arguments:
                yield self._chunk(index, {"tool_calls": [{"index": number, "function": {"arguments": arguments}}]})

    def _chunk(self, index: int, delta: dict[str, Any], end: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": end}
        return _event(self._head | {"choices": [choice]})


new_stream = ChatStream


def error_of(failure: Exception, status: int) -> dict[str, Any]:
    """The dialect's error body."""
    key = failure.key if isinstance(failure, Refused) else None
    kind = "server_error" if status >= 500 else "invalid_request_error"
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    if isinstance(failure, ContextOverflow):
        code = "context_length_exceeded"
    if isinstance(failure, MalformedCall):
        code = "malformed_tool_call"
    return {"error": {"message": str(failure), "type": kind, "param": key, "code": code}}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _head(request: ChatRequest, answer_id: str, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": request.model}


def _message_of(message: Message) -> dict[str, Any]:
    """Return the assistant message that the agent sends back later: byte for byte what the tracker matches."""
    content = message.get("content") or None if message.get("tool_calls") else message.get("content", "")
    answer: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    return answer | {key: message[key] for key in ("reasoning_content", "tool_calls") if message.get(key)}


def _usage_of(answers: Sequence[Sampled]) -> dict[str, Any]:
    """Tokens of all answers; the prompt that they share counts once, and as cached as the first answer found it."""
    read = max(sampled.read_tokens for sampled in answers)
    written = sum(len(sampled.logprobs) for sampled in answers)
    cached = min(sampled.cached_tokens for sampled in answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _logprobs_of(sampled: Sampled) -> dict[str, Any]:
    """Natural log-probabilities of all sampled tokens, those of the model's control tokens included."""
    tokens = [
        {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for text, logprob in zip(sampled.token_texts, sampled.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}
