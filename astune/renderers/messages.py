"""Canonical form of chat messages, so that two spellings of one message are equal.

Agents send the same text as a string or as a list of blocks, with keys omitted or null, and arguments of calls in other
JSON; none of that changes what the model reads. A message's identity is what does: role, name, text, images by their
hash, reasoning, tool calls with their ids, and the id of the tool call that it answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from astune.schema import Forest, Message, MessageNode, WorkflowError
from astune.schema.plain_json import whole

_OPTIONAL = ("name", "reasoning_content", "tool_calls", "tool_call_id", "images")
_PLAIN_ROLES = ("system", "user", "assistant")
_KEYS = frozenset({"role", "content", *_OPTIONAL} - {"images"})
_FORMATTERS = "of AgentScope's formatters, those of OpenAI (chat), DashScope, DeepSeek and Ollama write such messages"


class Identity(NamedTuple):
    """Identity of a message; a message that differs in any part was edited."""

    role: str
    name: str | None
    text: str
    reasoning: str | None
    tool_calls: str
    tool_call_id: str | None
    images: tuple[tuple[int, str], ...] = ()


def canonical(message: Message) -> Message:
    """Return the message with its content as one string and without empty optional keys.

    `images` are pairs: the number of characters of the text before an image, and the SHA-256 of its bytes or URL, with
    the requested detail. A lone surrogate, which no tokenizer reads, becomes �: a model may write it as an escape in
    JSON, and its agent send it back.

    Raises:
        WorkflowError: it is not a chat message, has neither content nor tool calls, or contains something other than
            text and images.
    """
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise WorkflowError(
            f"{message!r} is not a chat message",
            hint=f'messages are a list of {{"role": ..., "content": ...}}; {_FORMATTERS}',
        )
    if not _has_content(message):
        raise _without_content(message)
    text, images = _read(message.get("content"))
    plain: Message = {"role": whole(role), "content": whole(text)}
    if message.keys() == {"role", "content"} and not images:
        return plain
    message = {**message, "images": images}
    for key in _OPTIONAL:
        if message.get(key):
            plain[key] = whole(message[key])
    if "tool_calls" in plain:
        plain["tool_calls"] = [_canonical_call(call) for call in plain["tool_calls"]]
    return plain


def _has_content(message: Message) -> bool:
    """Return whether the message has content, which may be missing only beside tool calls.

    AgentScope up to 1.0.12 writes `[{"text": None}]` there with DashScope's formatter, others write nothing or null.
    """
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = None if all(_is_empty(block) for block in content) else content
    return content is not None or "tool_calls" in message


def _without_content(message: Message) -> WorkflowError:
    unknown = ", ".join(sorted(map(repr, message.keys() - _KEYS)))
    return WorkflowError(
        f"a message of role {message['role']} has no content{f', but the unknown keys {unknown}' if unknown else ''}",
        hint=f'write {{"role": ..., "content": ...}}; content may be missing only beside tool_calls; {_FORMATTERS}',
    )


def _canonical_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WorkflowError(
            f"a message holds {call!r}, which is not a tool call",
            hint='a call is {"id": ..., "type": "function", "function": {"name": ..., "arguments": "<JSON>"}}',
        )
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": text}}


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of text blocks (OpenAI's or DashScope's), or nothing.

    Raises:
        WorkflowError: it holds something else.
    """
    text, images = _read(content)
    if images:
        raise WorkflowError("a message contains an image where only text is allowed")
    return text


def _read(content: Any) -> tuple[str, list[tuple[int, str]]]:
    """The text and the images of a message's content."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list | tuple):
        raise WorkflowError(f"a message's content is text or a list of blocks, not {type(content).__name__}")
    texts: list[str] = []
    images: list[tuple[int, str]] = []
    for block in content:
        if _is_empty(block):
            continue
        image = _image(block)
        if image is None:
            texts.append(_block_text(block))
        else:
            images.append((len("\n".join(texts)), image))
    return "\n".join(texts), images


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return block["text"]
    kind = block.get("type", sorted(block)) if isinstance(block, dict) else type(block).__name__
    raise WorkflowError(f"a message holds a block of kind {kind!r}, but a message is text and images", hint=_FORMATTERS)


def _is_empty(block: Any) -> bool:
    return isinstance(block, dict) and "text" in block and block["text"] is None and block.keys() <= {"type", "text"}


def _image(block: Any) -> str | None:
    """The hash of an image in the forms of OpenAI, AgentScope and DashScope; None for any other block."""
    match block:
        case {"text": str()}:
            return None
        case {"type": "image_url", "image_url": {"url": str(url), "detail": str(detail)}}:
            return f"{_hash(url)} {detail}"
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return _hash(url)
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            return _hash(f"data:;base64,{data}")
        case {"type": "image", "source": {"url": str(url)}} | {"image": str(url)}:
            return _hash(url)
    return None


def _hash(address: str) -> str:
    """Hash the bytes that a data URL holds, or an address."""
    head, separator, data = address.partition(";base64,")
    if not (separator and head.startswith("data:")):
        return hashlib.sha256(address.encode()).hexdigest()
    try:
        return hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()
    except ValueError as cause:
        raise WorkflowError(f"a message contains an image with invalid base64: {cause}") from cause


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
        tuple(message.get("images", ())),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rules for when two messages of a conversation are equal.

    `token` is exact: messages differ if the model might read other tokens. `text` ignores names, ids of tool calls, and
    reasoning. `ignore_tools` ignores a change of the offered tools; the prompt then keeps the earlier ones.
    """

    level: Literal["token", "text"] = "token"
    ignore_tools: bool = False

    @property
    def exact(self) -> bool:
        return self.level == "token" and not self.ignore_tools

    def key(self, who: Identity) -> Identity:
        """Return a key that equal messages share."""
        if self.level == "token" or not (who.name or who.reasoning or who.tool_calls or who.tool_call_id):
            return who
        calls = json.dumps([call[1:] for call in json.loads(who.tool_calls)]) if who.tool_calls else ""
        return Identity(who.role, None, who.text, None, calls, None, who.images)


EXACT = Comparison()


def _call_identity(call: dict[str, Any]) -> list[Any]:
    """Normalise a call: agents rewrite the model's JSON with other spaces, and those in JavaScript 1.0 as 1."""
    function = call["function"]
    return [call["id"], function["name"], meaning_of(function["arguments"], parse_float=_number)]


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def meaning_of(arguments: Any, *, parse_float: Callable[[str], float] = float) -> Any:
    """Parse a call's arguments; return them unchanged if they are not JSON."""
    try:
        return json.loads(arguments, parse_float=parse_float) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def in_roles_of(template: str, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with developers as systems, which they are to a model whose template has no developers.

    Args:
        template: its source.
    """
    if "developer" in template:
        return list(messages)
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]


def message_of(node: MessageNode) -> Message:
    """The canonical message that a node holds."""
    message: Message = {"role": node.role, "content": node.content}
    optional = (node.name, node.reasoning, node.tool_calls, node.tool_call_id, node.images)
    for key, value in zip(_OPTIONAL, optional, strict=True):
        if value:
            message[key] = value
    return message


def conversations(forest: Forest) -> list[list[Message]]:
    """Every timeline as the messages that it consists of, in the order in which their last answers were asked for.

    The order of nodes is another one where it has to be independent of timing.
    """
    paths = [forest.path(leaf) for leaf in forest.leaves()]
    paths.sort(key=lambda path: max(node.asked_after for node in path if node.sampled))
    return [[message_of(node) for node in path] for path in paths]


def is_plain(message: Message) -> bool:
    """Return whether the message is a role of every template and a text, and nothing else."""
    return message.keys() == {"role", "content"} and message["role"] in _PLAIN_ROLES


def is_whole_in(answer: str, message: Message) -> bool:
    """Return whether the answer's part of a render contains all that the model wrote."""
    pieces = [message["content"], message.get("reasoning_content") or ""]
    pieces += [call["function"]["name"] for call in message.get("tool_calls", ())]
    return all(piece.strip() in answer for piece in pieces)
