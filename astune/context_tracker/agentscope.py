"""Translation of AgentScope 1.x's messages; no other module depends on their format.

AgentScope is imported with its first answer, never before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from astune.renderers.messages import meaning_of, text_of
from astune.renderers.renderer import Tool
from astune.schema import ConfigError, Message, install_extra, is_tool_call_id

_FINISH_FUNCTION = "generate_response"
"""The tool by which AgentScope's agents finish a structured reply; those of 1.0.7 finish every reply by it."""

_QUIET = "AGENTSCOPE_DISABLE_CONSOLE_OUTPUT"


class Usage(NamedTuple):
    """Cost of a call: tokens read and sampled, and seconds in the engine."""

    read_tokens: int
    sampled_tokens: int
    seconds: float


def quieten() -> None:
    """Keep agents from printing every answer, unless the environment requests it."""
    os.environ.setdefault(_QUIET, "true")


def is_quiet() -> bool:
    """Return whether agents shall print nothing; AgentScope reads the variable from 1.0.9 on, when an agent is made."""
    return os.environ.get(_QUIET, "").lower() == "true"


def chat_response(message: Message, usage: Usage) -> Any:
    """The model's answer as AgentScope's `ChatResponse`."""
    try:
        from agentscope.message import TextBlock, ThinkingBlock, ToolUseBlock
        from agentscope.model import ChatResponse
        from agentscope.model._model_usage import ChatUsage  # it is exported nowhere
    except ImportError as cause:
        raise ConfigError(
            f"the workflow uses AgentScope, which does not import: {cause}",
            hint=install_extra("agentscope"),
        ) from cause
    blocks: list[Any] = []
    if message.get("reasoning_content"):
        blocks.append(ThinkingBlock(type="thinking", thinking=message["reasoning_content"]))
    calls = message.get("tool_calls", [])
    if message["content"] or not calls:
        blocks.append(TextBlock(type="text", text=message["content"]))
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append(ToolUseBlock(type="tool_use", id=call["id"], name=function["name"], input=arguments))
    spent = ChatUsage(input_tokens=usage.read_tokens, output_tokens=usage.sampled_tokens, time=usage.seconds)
    return ChatResponse(content=blocks, usage=spent)


def without_blocks(message: Message) -> Message:
    """The message with its thoughts and calls where OpenAI has them; AgentScope writes them into the content."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    rest: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = list(message.get("tool_calls") or [])
    for block in content:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "tool_use", "id": call_id, "name": name, "input": arguments}:
                calls.append({"id": call_id, "function": {"name": name, "arguments": arguments}})
            case _:
                rest.append(block)
    moved: Message = {"content": rest}
    if thoughts:
        moved["reasoning_content"] = "\n".join(thoughts)
    if calls:
        moved["tool_calls"] = calls
    return {**message, **moved}


def without_finish_tool(tools: Sequence[Tool] | None) -> list[Tool]:
    """The tools that the agent's author offers: a plain text is a finished reply, so the model needs no tool for it."""
    return [tool for tool in tools or () if not _only_finishes(tool.get("function", {}))]


def _only_finishes(function: dict[str, Any]) -> bool:
    parameters = function.get("parameters", {}).get("properties", {})
    return function.get("name") == _FINISH_FUNCTION and set(parameters) <= {"response"}


def wants_finish_call(tools: Sequence[Tool]) -> bool:
    """Return whether an agent of AgentScope 1.0.7 can finish its reply only by a call.

    With a `structured_model` its finish function requires that model's fields beside `response`. Later versions say
    `tool_choice="required"` there; 1.0.7 does not, and accepts ten plain answers before it gives up.
    """
    for tool in tools:
        function = tool.get("function", {})
        required = set(function.get("parameters", {}).get("required", ()))
        if function.get("name") == _FINISH_FUNCTION and required > {"response"}:
            return True
    return False


class _StoredAnswer(NamedTuple):
    """A plain answer in the form of a call that the model did not write."""

    text: str
    call_id: str


def without_finish_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as the model wrote and read them.

    AgentScope 1.0.7 stores a plain answer three times:

        assistant: (nothing), tool call generate_response(response="4")
        tool:      Successfully generated response.
        assistant: 4

    of which the model wrote only the last. The first two are removed. If the agent requires more than a text, the
    tool's error follows instead; it then becomes a user message after the answer:

        assistant: (nothing), tool call generate_response(response="4")         assistant: 4
        tool:      Arguments Validation Error: result is missing          ->    user: Arguments Validation Error: ...

    A call of `generate_response` by the model itself is kept.
    """
    kept: list[Message] = []
    position = 0
    while position < len(messages):
        message, *behind = messages[position : position + 3]
        stored = _stored_answer(message)
        if stored is None or not behind or behind[0].get("tool_call_id") != stored.call_id:
            kept.append(message)
            position += 1
        elif len(behind) == 2 and _says(behind[1], stored.text):
            kept.append(behind[1])
            position += 3
        else:
            kept.append({"role": "assistant", "content": stored.text})
            kept.append({"role": "user", "content": behind[0].get("content")})
            position += 2
    return kept


def _stored_answer(message: Message) -> _StoredAnswer | None:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls:
        return None
    if message.get("role") != "assistant" or len(calls) != 1 or text_of(message.get("content")):
        return None
    call_id, function = calls[0].get("id"), calls[0].get("function", {})
    arguments = meaning_of(function.get("arguments"))
    if function.get("name") != _FINISH_FUNCTION or is_tool_call_id(call_id) or not isinstance(arguments, dict):
        return None
    return _StoredAnswer(arguments["response"] or "", call_id) if arguments.keys() == {"response"} else None


def _says(message: Message, text: str) -> bool:
    return (
        message.get("role") == "assistant" and not message.get("tool_calls") and text_of(message.get("content")) == text
    )
