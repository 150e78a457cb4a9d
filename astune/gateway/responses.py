"""OpenAI's Responses, read and written: https://platform.openai.com/docs/api-reference/responses.

A request becomes one of Chat Completions, so that a conversation is the same messages in every dialect. Conversations
are kept while their episode lasts, so that `previous_response_id` extends them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from astune.gateway.chat_completions import (
    Body,
    ChatRequest,
    Conversations,
    Refused,
    Sampled,
    error_of,
    plain_text,
    require_tools,
    shaped,
    validated,
)
from astune.gateway.live_answers import LiveAnswer, Sent
from astune.renderers.settled import Settled, SettledCall
from astune.schema import Message

OVERRIDDEN = frozenset({"temperature", "top_p", "reasoning"})
"""Sampling parameters, which are ignored since the run's configuration decides."""
WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "user",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "stream_options",
    }
)


class _ResponsesRequest(Body):
    model: str
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    """Thoughts are sent as text; nothing of them is encrypted."""
    parallel_tool_calls: Literal[True] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None


class ResponsesChat(ChatRequest):
    """The request as one of Chat Completions. `echo` is what the response repeats of it."""

    echo: dict[str, Any]
    instructions: str | None
    store: bool

    @property
    def conversation(self) -> list[Message] | None:
        return self.messages[bool(self.instructions) :] if self.store else None


def read_request(body: Any, kept: Conversations) -> tuple[ChatRequest, list[str]]:
    """The request as one of Chat Completions, and which of its keys are overridden.

    Args:
        kept: the conversations of earlier responses by their ids.

    Raises:
        Refused: it is no request of this dialect, or asks for what is not there.
    """
    request, overridden = validated(_ResponsesRequest, body, OVERRIDDEN, WITHOUT_EFFECT)
    messages: list[Message] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    if request.previous_response_id is not None:
        if request.previous_response_id not in kept:
            raise Refused(
                f"previous_response_id {request.previous_response_id!r} is unknown in this episode",
                key="previous_response_id",
            )
        messages += kept[request.previous_response_id]
    messages += _messages_of(request.input)
    tools = [_tool_of(tool, f"tools.{number}") for number, tool in enumerate(request.tools or ())]
    echo = {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "previous_response_id": request.previous_response_id,
        "store": request.store is not False,
        "text": request.text or {"format": {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "truncation": "disabled",
    }
    asked = {
        "model": request.model,
        "messages": messages,
        "tools": tools or None,
        "tool_choice": _choice_of(request.tool_choice),
        "response_format": _format_of(request.text),
        "max_completion_tokens": request.max_output_tokens,
        "stream": request.stream,
        "instructions": request.instructions,
        "store": request.store is not False,
        "echo": echo,
    }
    chat = shaped(ResponsesChat, asked)
    require_tools(chat)
    return chat, overridden


def answer_of(request: ChatRequest, answers: Sequence[Sampled], *, answer_id: str) -> dict[str, Any]:
    """A `response`."""
    (sampled,) = answers
    cut = sampled.finish_reason == "length"
    return _head(request, answer_id, "incomplete" if cut else "completed") | {
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(_items_of(sampled, answer_id)),
        "usage": {
            "input_tokens": sampled.read_tokens,
            "input_tokens_details": {"cached_tokens": sampled.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": len(sampled.logprobs),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sampled.read_tokens + len(sampled.logprobs),
        },
    }


class ResponseStream:
    """Events in OpenAI's order: the response, its items one after another, the response as it ended."""

    def __init__(self, request: ChatRequest, answer_id: str) -> None:
        self._request = request
        self._answer_id = answer_id
        self._n_events = 0
        self._sent = Sent()
        self._index = -1
        self._item: dict[str, Any] = {}
        """The item that is being sent, the one with this index."""
        self._written = ""
        """The text, or the arguments, of this item so far."""

    def more(self, live: Sequence[LiveAnswer]) -> Iterator[str]:
        (answer,) = live
        if answer.begun:
            yield from self._rest(answer.settled())

    def end(self, answers: Sequence[Sampled]) -> Iterator[str]:
        (sampled,) = answers
        yield from self._rest(sampled.settled, ended=True)
        if not self._item:  # an answer without anything
            yield from self._text("message", "")
        yield from self._close()
        whole = answer_of(self._request, answers, answer_id=self._answer_id)
        yield self._event(whole["status"], response=whole)

    def broken(self, failure: Exception) -> str:
        error = error_of(failure, 500)["error"]
        return self._event("error", message=error["message"], code=error["code"], param=error["param"])

    def _rest(self, part: Settled, *, ended: bool = False) -> Iterator[str]:
        if not self._n_events:
            begun = _head(self._request, self._answer_id, "in_progress")
            yield self._event("created", response=begun)
            yield self._event("in_progress", response=begun)
        rest = self._sent.rest(part, ended=ended)
        if rest.reasoning:
            yield from self._text("reasoning", rest.reasoning)
        if rest.content:
            yield from self._text("message", rest.content)
        for number, arguments, begun in rest.calls:
            if begun is not None:
                call = begun._replace(arguments="")
                yield from self._begin(_call_item(call, number, self._answer_id, status="in_progress"))
            if arguments:
                self._written += arguments
                yield self._event("function_call_arguments.delta", **self._place, delta=arguments)

    def _text(self, kind: str, text: str) -> Iterator[str]:
        """More of a thought or a text, which is begun where it is not."""
        if self._item.get("type") != kind:
            yield from self._begin(_text_item(kind, None, self._answer_id))
            yield self._event("content_part.added", **self._place, content_index=0, part=_part(kind, ""))
        self._written += text
        yield self._event(f"{_PARTS[kind]}.delta", **self._place, content_index=0, delta=text, **_LOGPROBS[kind])

    def _begin(self, item: dict[str, Any]) -> Iterator[str]:
        yield from self._close()
        self._index, self._item, self._written = self._index + 1, item, ""
        yield self._event("output_item.added", output_index=self._index, item=item)

    def _close(self) -> Iterator[str]:
        """The end of the item that is being sent."""
        match self._item:
            case {"type": "function_call", "name": name}:
                self._item |= {"arguments": self._written, "status": "completed"}
                yield self._event("function_call_arguments.done", **self._place, arguments=self._written, name=name)
            case {"type": kind}:
                part, place = _part(kind, self._written), self._place | {"content_index": 0}
                self._item |= {"content": [part], "status": "completed"}
                yield self._event(f"{_PARTS[kind]}.done", **place, text=self._written, **_LOGPROBS[kind])
                yield self._event("content_part.done", **place, part=part)
            case _:
                return
        yield self._event("output_item.done", output_index=self._index, item=self._item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": self._index}

    def _event(self, kind: str, **fields: Any) -> str:
        name = kind if kind == "error" else f"response.{kind}"
        body = {"type": name, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return f"event: {name}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n"


new_stream = ResponseStream

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_LOGPROBS: dict[str, dict[str, Any]] = {"message": {"logprobs": []}, "reasoning": {}}


def _messages_of(given: str | list[dict[str, Any]]) -> list[Message]:
    """Items as messages; a thought, a text and calls that follow each other are one answer."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    answer: Message | None = None
    for number, item in enumerate(given):
        place = f"input.{number}"
        part = _answer_part(item, place)
        if part is None:
            answer = None
            messages.append(_other_message(item, place))
        elif answer is None or not _goes_on(answer, part):
            answer = {"role": "assistant", "content": "", **part}
            messages.append(answer)
        else:
            calls = [*answer.get("tool_calls", ()), *part.get("tool_calls", ())]
            answer |= part | ({"tool_calls": calls} if calls else {})
    return messages


def _answer_part(item: dict[str, Any], place: str) -> Message | None:
    """An item of an answer as keys of its message; None for what is no answer."""
    match item:
        case {"role": "assistant", "content": content}:
            return {"content": plain_text(content, f"{place}.content")}
        case {"type": "function_call", "call_id": str(call), "name": str(name), "arguments": str(arguments)}:
            return {
                "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}]
            }
        case {"type": "reasoning"}:
            thought = plain_text(item.get("content") or "", f"{place}.content")
            return {"reasoning_content": thought} if thought else {}
    return None


def _goes_on(answer: Message, part: Message) -> bool:
    """Whether this part can belong to the answer: thought, text and calls come in this order."""
    if "tool_calls" in part or not part:
        return True
    return not answer.get("tool_calls") and not answer["content"] and "reasoning_content" not in part


def _other_message(item: dict[str, Any], place: str) -> Message:
    match item:
        case {"role": "user" | "system" | "developer" as role, "content": content}:
            return {"role": role, "content": plain_text(content, f"{place}.content")}
        case {"type": "function_call_output", "call_id": str(call), "output": output}:
            return {"role": "tool", "tool_call_id": call, "content": plain_text(output, f"{place}.output")}
    raise Refused(f"{place}: an item {item.get('type') or item.get('role')!r} is not offered here", key=place)


def _tool_of(tool: dict[str, Any], place: str) -> dict[str, Any]:
    match tool:
        case {"type": "function", "name": str(name), "parameters": dict(schema)}:
            function = {"name": name, "description": tool.get("description") or "", "parameters": schema}
            return {"type": "function", "function": function}
    raise Refused(f"{place}: the tool {tool.get('type')!r} is not offered here", key=place)


def _choice_of(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case dict():
            raise Refused(f"tool_choice: {choice.get('type')!r} is not offered here", key="tool_choice")
    return choice


def _format_of(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as `response_format`."""
    match (text or {}).get("format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "name": str(name), "schema": dict(schema)}:
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    raise Refused("text.format is not offered here", key="text.format")


def _head(request: ChatRequest, answer_id: str, status: str) -> dict[str, Any]:
    """A response without output."""
    assert isinstance(request, ResponsesChat)
    return {
        "id": answer_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "temperature": None,
        "top_p": None,
        "reasoning": {"effort": None, "summary": None},
        **request.echo,
    }


def _items_of(sampled: Sampled, answer_id: str) -> Iterator[dict[str, Any]]:
    """Thought, text and calls of an answer; one without any is an empty text."""
    whole = sampled.settled
    if whole.reasoning:
        yield _text_item("reasoning", whole.reasoning, answer_id)
    if whole.content or not (whole.calls or whole.reasoning):
        yield _text_item("message", whole.content, answer_id)
    for number, call in enumerate(whole.calls):
        yield _call_item(call, number, answer_id, status="completed")


def _call_item(call: SettledCall, number: int, answer_id: str, *, status: str) -> dict[str, Any]:
    return {
        "id": f"fc_{answer_id}_{number}",
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _text_item(kind: str, text: str | None, answer_id: str) -> dict[str, Any]:
    """A thought or a text; None where it is only begun."""
    content = [] if text is None else [_part(kind, text)]
    status = "in_progress" if text is None else "completed"
    if kind == "reasoning":
        return {"id": f"rs_{answer_id}", "type": kind, "summary": [], "content": content, "status": status}
    return {"id": f"msg_{answer_id}", "type": kind, "role": "assistant", "content": content, "status": status}


def _part(kind: str, text: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": []} if kind == "message" else {}
    return {"type": _PARTS[kind], "text": text, **more, **_LOGPROBS[kind]}
