"""Anthropic's Messages, read and written: https://docs.anthropic.com/en/api/messages.

A request becomes one of Chat Completions, so that one conversation is the same messages in both dialects: a system
prompt and results of tools become messages of their own, and blocks of an answer its text, its thought and its calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from astune.gateway.chat_completions import (
    MAX_STOPS,
    Body,
    ChatRequest,
    Conversations,
    Refused,
    Sampled,
    StopText,
    plain_text,
    shaped,
    validated,
)
from astune.gateway.live_answers import LiveAnswer, Sent
from astune.renderers.settled import Settled
from astune.schema import ContextOverflow, Message

OVERRIDDEN = frozenset({"temperature", "top_p", "top_k", "thinking"})
"""Sampling parameters, which are ignored since the run's configuration decides."""
WITHOUT_EFFECT = frozenset({"metadata", "service_tier", "betas"})
_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking"})
"""Keys of a request whose prompt is to be counted, which has no answer."""


class _MessagesRequest(Body):
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stream: bool | None = None
    stop_sequences: list[StopText] | None = Field(default=None, max_length=MAX_STOPS)


def read_request(body: Any, kept: Conversations) -> tuple[ChatRequest, list[str]]:
    """The request as one of Chat Completions, and which of its keys are overridden.

    Raises:
        Refused: it is no request of this dialect, or asks for what is not there.
    """
    request, overridden = validated(_MessagesRequest, body, OVERRIDDEN, WITHOUT_EFFECT)
    messages = [{"role": "system", "content": plain_text(request.system, "system")}] if request.system else []
    for position, message in enumerate(request.messages):
        messages += _messages_of(message, f"messages.{position}")
    asked = {
        "model": request.model,
        "messages": messages,
        "tools": [_tool_of(tool, f"tools.{number}") for number, tool in enumerate(request.tools or ())] or None,
        "tool_choice": _choice_of(request.tool_choice),
        "max_completion_tokens": request.max_tokens,
        "stream": request.stream,
        "stop": request.stop_sequences,
    }
    return shaped(ChatRequest, asked), overridden


def read_count_request(body: Any) -> ChatRequest:
    """A request to count the tokens of its prompt.

    Raises:
        Refused: it is no request of this dialect, or asks for what is not there.
    """
    if isinstance(body, dict) and (unknown := sorted(body.keys() - COUNTED)):
        raise Refused(f"{unknown[0]}: is not offered here", key=unknown[0])
    return read_request({**body, "max_tokens": 1} if isinstance(body, dict) else body, {})[0]


def answer_of(request: ChatRequest, answers: Sequence[Sampled], *, answer_id: str) -> dict[str, Any]:
    """A `message`."""
    (sampled,) = answers
    return _head(request, sampled.read_tokens, answer_id) | {
        "content": _blocks_of(sampled.message),
        "stop_reason": _stop_reason(sampled),
        "stop_sequence": sampled.stopped_by,
        "usage": _usage_of(sampled),
    }


class MessageStream:
    """Events in Anthropic's order: the message, its blocks one after another, how it ended."""

    def __init__(self, request: ChatRequest, answer_id: str) -> None:
        self._request = request
        self._answer_id = answer_id
        self._begun = False
        self._sent = Sent()
        self._open: str | None = None
        """The kind of the block that is being sent; a call's with its number."""
        self._index = 0

    def more(self, live: Sequence[LiveAnswer]) -> Iterator[str]:
        (answer,) = live
        if answer.begun:
            yield from self._rest(answer.settled(), answer.read_tokens)

    def end(self, answers: Sequence[Sampled]) -> Iterator[str]:
        (sampled,) = answers
        yield from self._rest(sampled.settled, sampled.read_tokens, ended=True)
        yield from self._close()
        end = {"stop_reason": _stop_reason(sampled), "stop_sequence": sampled.stopped_by}
        yield _event("message_delta", delta=end, usage=_usage_of(sampled))
        yield _event("message_stop")

    def broken(self, failure: Exception) -> str:
        return _event("error", error=error_of(failure, 500)["error"])

    def _rest(self, part: Settled, read_tokens: int, *, ended: bool = False) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            yield _event("message_start", message=_head(self._request, read_tokens, self._answer_id))
        rest = self._sent.rest(part, ended=ended)
        if rest.reasoning:
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": rest.reasoning})
        if rest.content:
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": rest.content})
        for number, arguments, begun in rest.calls:
            if begun is not None:
                empty = {"type": "tool_use", "id": begun.id, "name": begun.name, "input": {}}
                yield from self._begin(f"tool_use {number}", empty)
            if arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _begin(self, kind: str, empty: dict[str, Any]) -> Iterator[str]:
        """A block, where it is not the one that is open."""
        if self._open != kind:
            yield from self._close()
            yield _event("content_block_start", index=self._index, content_block=empty)
            self._open = kind

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)
            self._open = None
            self._index += 1


new_stream = MessageStream


def error_of(failure: Exception, status: int) -> dict[str, Any]:
    """The dialect's error body."""
    kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = f"prompt is too long: {failure}" if isinstance(failure, ContextOverflow) else str(failure)
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _messages_of(message: dict[str, Any], place: str) -> list[Message]:
    """A message of Anthropic's as one or several of OpenAI's: results of tools first, then what the user says."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant") or message.keys() - {"role", "content"}:
        raise Refused(f"{place}: a message has a role, user or assistant, and content", key=place)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or (not content and role == "user"):
        raise Refused(f"{place}.content: expected a text or a list of blocks", key=f"{place}.content")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[Message] = []
    for number, block in enumerate(content):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(thought)} if role == "assistant":
                thoughts.append(thought)
            case {"type": "tool_use", "id": str(call), "name": str(name), "input": given} if role == "assistant":
                spelled = json.dumps(given, ensure_ascii=False)
                calls.append({"id": call, "type": "function", "function": {"name": name, "arguments": spelled}})
            case {"type": "tool_result", "tool_use_id": str(call)} if role == "user":
                result = plain_text(block.get("content") or "", f"{place}.content.{number}")
                results.append({"role": "tool", "tool_call_id": call, "content": result})
            case _:
                kind = block.get("type") if isinstance(block, dict) else block
                raise Refused(
                    f"{place}.content.{number}: a block {kind!r} of {role} is not offered here", key=f"{place}.content"
                )
    if role == "user":
        return [*results, {"role": "user", "content": "".join(texts)}] if texts else results
    answer: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        answer["reasoning_content"] = "".join(thoughts)
    if calls:
        answer["tool_calls"] = calls
    return [answer]


def _tool_of(tool: dict[str, Any], place: str) -> dict[str, Any]:
    match tool:
        case {"name": str(name), "input_schema": dict(schema)} if tool.get("type", "custom") == "custom":
            function = {"name": name, "description": tool.get("description", ""), "parameters": schema}
            return {"type": "function", "function": function}
    raise Refused(f"{place}: the tool {tool.get('type') or tool.get('name')!r} is not offered here", key=place)


def _choice_of(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case None:
            return None
        case {"disable_parallel_tool_use": True}:
            raise Refused("disable_parallel_tool_use is not offered here", key="tool_choice")
        case {"type": "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": str(kind)} if kind in _CHOICES:
            return _CHOICES[kind]
    raise Refused(f"tool_choice is {choice!r}", key="tool_choice")


def _head(request: ChatRequest, read_tokens: int, answer_id: str) -> dict[str, Any]:
    """A message before its first block."""
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": read_tokens, "output_tokens": 0},
    }


def _usage_of(sampled: Sampled) -> dict[str, int]:
    """Tokens of an answer; what was read from the cache is not among `input_tokens`."""
    return {
        "input_tokens": sampled.read_tokens - sampled.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": sampled.cached_tokens,
        "output_tokens": len(sampled.logprobs),
    }


def _blocks_of(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks


def _stop_reason(sampled: Sampled) -> Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]:
    if sampled.stopped_by is not None:
        return "stop_sequence"
    if sampled.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if sampled.message.get("tool_calls") else "end_turn"


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"
