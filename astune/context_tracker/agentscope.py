"""AgentScope 1.x's way of writing messages, translated: nothing of it is known elsewhere.

AgentScope is imported when the first answer is given to it, never before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from astune.context_tracker.messages import text_of
from astune.context_tracker.renderer import Tool
from astune.schema import ConfigError, Message

_FINISH_FUNCTION = "generate_response"
"""The tool by which agents of AgentScope 1.0.7 to 1.0.11 finish a reply, offered or not."""


def quieten() -> None:
    """Keep agents from printing every answer, unless the user's environment asks for it."""
    os.environ.setdefault("AGENTSCOPE_DISABLE_CONSOLE_OUTPUT", "true")


def chat_response(message: Message) -> Any:
    """The model's answer as AgentScope's `ChatResponse`."""
    try:
        from agentscope.message import TextBlock, ThinkingBlock, ToolUseBlock
        from agentscope.model import ChatResponse
    except ImportError as cause:
        raise ConfigError(
            f"the workflow uses AgentScope, which does not import: {cause}",
            hint="pip install 'astune[agentscope]'",
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
    return ChatResponse(content=blocks)


def without_finish_tool(tools: Sequence[Tool] | None) -> list[Tool]:
    """The tools that the agent's author offers: a plain text is a finished reply, so the model needs no tool for it."""
    return [tool for tool in tools or () if not _only_finishes(tool.get("function", {}))]


def _only_finishes(function: dict[str, Any]) -> bool:
    parameters = function.get("parameters", {}).get("properties", {})
    return function.get("name") == _FINISH_FUNCTION and set(parameters) <= {"response"}


def without_finish_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages as the model wrote and read them.

    AgentScope 1.0.7 stores a plain answer three times:

        assistant: (nothing), tool call generate_response(response="4")
        tool:      Successfully generated response.
        assistant: 4

    of which the model wrote only the last. The first two are left out.
    """
    kept: list[Message] = []
    position = 0
    while position < len(messages):
        if _is_finish(messages[position : position + 3]):
            position += 2
        kept.append(messages[position])
        position += 1
    return kept


def _is_finish(messages: Sequence[Message]) -> bool:
    if len(messages) < 3 or [message.get("role") for message in messages] != ["assistant", "tool", "assistant"]:
        return False
    call, result, answer = messages
    calls = call.get("tool_calls") or []
    if len(calls) != 1 or text_of(call.get("content")) or answer.get("tool_calls"):
        return False
    function = calls[0].get("function", {})
    if function.get("name") != _FINISH_FUNCTION or result.get("tool_call_id") != calls[0].get("id"):
        return False
    try:
        response = json.loads(function.get("arguments") or "{}").get("response")
    except (ValueError, AttributeError):
        return False
    return response == text_of(answer.get("content"))
