"""Chat messages in one canonical form, so that two spellings of one message are one message.

Agents send the same text as a string or as a list of blocks, with keys left out or set to null, and arguments of
calls in other JSON; none of that changes what the model reads. What does is the message's identity: role, name, text,
reasoning, tool calls with their ids, and the id of the tool call that it answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from astune.schema import Forest, Message, MessageNode, WorkflowError

_OPTIONAL = ("name", "reasoning_content", "tool_calls", "tool_call_id")


class Identity(NamedTuple):
    """What makes two messages the same message; a message that differs in any of it was edited."""

    role: str
    name: str | None
    text: str
    reasoning: str | None
    tool_calls: str
    tool_call_id: str | None


def canonical(message: Message) -> Message:
    """The message with its content as one string and without empty optional keys.

    Raises:
        WorkflowError: it is no chat message, or it holds something other than text.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise WorkflowError(
            f"the model was called with {message!r}, which is no chat message",
            hint='messages are a list of {"role": ..., "content": ...}',
        )
    plain: Message = {"role": role, "content": text_of(message.get("content"))}
    if message.keys() == {"role", "content"}:
        return plain
    for key in _OPTIONAL:
        if message.get(key):
            plain[key] = message[key]
    if "tool_calls" in plain:
        plain["tool_calls"] = [_canonical_call(call) for call in plain["tool_calls"]]
    return plain


def _canonical_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WorkflowError(
            f"a message holds {call!r}, which is no tool call",
            hint='a call is {"id": ..., "type": "function", "function": {"name": ..., "arguments": "<JSON>"}}',
        )
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": text}}


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of text blocks (OpenAI's or DashScope's), or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_block_text(block) for block in content)
    raise WorkflowError(f"a message's content is text or a list of blocks, not {type(content).__name__}")


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return block["text"]
    kind = block.get("type", sorted(block)) if isinstance(block, dict) else type(block).__name__
    raise WorkflowError(f"a message holds a block of kind {kind!r}, but the model reads only text")


def identity(message: Message) -> Identity:
    """The identity of a canonical message."""
    if len(message) == 2:
        return Identity(message["role"], None, message["content"], None, "", None)
    tool_calls = message.get("tool_calls")
    return Identity(
        message["role"],
        message.get("name"),
        message["content"],
        message.get("reasoning_content"),
        json.dumps([_call_identity(call) for call in tool_calls], sort_keys=True) if tool_calls else "",
        message.get("tool_call_id"),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """When two messages of a conversation count as the same.

    `token` is exact: they differ where the model might read other tokens. `text` passes over names, ids of tool calls,
    and reasoning. `ignore_tools` passes over other tools being offered; the prompt then goes on with those of before.
    """

    level: Literal["token", "text"] = "token"
    ignore_tools: bool = False

    @property
    def exact(self) -> bool:
        return self.level == "token" and not self.ignore_tools

    def key(self, who: Identity) -> Identity:
        """What messages that count as the same have in common."""
        if self.level == "token" or not (who.name or who.reasoning or who.tool_calls or who.tool_call_id):
            return who
        calls = json.dumps([call[1:] for call in json.loads(who.tool_calls)]) if who.tool_calls else ""
        return Identity(who.role, None, who.text, None, calls, None)


EXACT = Comparison()


def _call_identity(call: dict[str, Any]) -> list[Any]:
    """Arguments as what they mean: agents write the model's JSON anew, with other spaces."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    return [call["id"], function["name"], arguments]


def message_of(node: MessageNode) -> Message:
    """The canonical message that a node holds."""
    message: Message = {"role": node.role, "content": node.content}
    optional = (node.name, node.reasoning, node.tool_calls, node.tool_call_id)
    for key, value in zip(_OPTIONAL, optional, strict=True):
        if value:
            message[key] = value
    return message


def conversations(forest: Forest) -> list[list[Message]]:
    """Every timeline as the messages that it consists of, in the order of `Forest.timelines`."""
    parents = {node.parent for node in forest.nodes}
    paths: list[Sequence[MessageNode]] = [
        forest.path(node.node_id) for node in forest.nodes if node.node_id not in parents
    ]
    return [[message_of(node) for node in path] for path in paths if any(node.sampled for node in path)]
