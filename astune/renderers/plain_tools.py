"""Tool calls as plain text, for models whose chat template has no tools.

The system message describes the tools, an answer holds its calls, and a result is read as a user's message:

    system      ... <tools>
                {"name": "add", "description": "...", "parameters": {...}}
                </tools> ...
    assistant   I add them. <tool_call>
                {"name": "add", "arguments": {"a": 1, "b": 2}}
                </tool_call>
    user        <tool_response>
                3
                </tool_response>

Hermes and Qwen models were trained on this format, so other models have seen it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from astune.renderers.call_json import read_json, spelled
from astune.renderers.renderer import Reply, Tool
from astune.schema import Message
from astune.schema.plain_json import whole

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_RESULT = "is_tool_result"
_DESCRIPTION = """\
You can call these tools:
<tools>
{tools}
</tools>
To call one, write
<tool_call>
{{"name": "<its name>", "arguments": {{<its arguments>}}}}
</tool_call>
and you will read what it gives between <tool_response> and </tool_response>."""


def spoken(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Return the same messages, one for one, rewritten for a template without tool support.

    Without a system message, the first message describes the tools.
    """
    plain = [_spoken(message) for message in messages]
    if tools and plain:
        described = _DESCRIPTION.format(
            tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        )
        first = plain[0]
        plain[0] = {**first, "content": f"{first['content']}\n\n{described}" if first["content"] else described}
        if first["role"] != "system":
            plain[0] = {**first, "content": f"{described}\n\n{first['content']}"}
    return plain


def folded(messages: Sequence[Message]) -> list[Message]:
    """Results that follow each other as one message: many templates want users and assistants to take turns."""
    kept: list[Message] = []
    for message in messages:
        if kept and message.get(_RESULT) and kept[-1].get(_RESULT):
            kept[-1] = {**message, "content": f"{kept[-1]['content']}\n{message['content']}"}
        else:
            kept.append(message)
    return [{key: message[key] for key in message if key != _RESULT} for message in kept]


def _spoken(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>", _RESULT: True}
    calls = "\n".join(_call_text(call["function"]) for call in message.get("tool_calls", ()))
    content = "\n".join(part for part in (message["content"], calls) if part)
    return {**{key: message[key] for key in message if key != "tool_calls"}, "content": content}


def _call_text(function: dict[str, Any]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'


def read(text: str) -> Reply:
    """An answer's text and calls.

        I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>

    is the text "I add." and a call. A malformed call stays in the text, and is reported; what follows a call is not
    read, as in the readers of families.
    """
    blocks = list(_CALL.finditer(text))
    found = [_call(block[1]) if block[0].endswith("</tool_call>") else None for block in blocks]
    calls = [call for call in found if call is not None]
    malformed = [block[0] for block, call in zip(blocks, found, strict=True) if call is None]
    if not calls:
        return Reply(text, None, calls, malformed)
    before = text[: blocks[0].start()].strip()
    return Reply("\n".join(part for part in [before, *malformed] if part), None, calls, malformed)


def _call(text: str) -> tuple[str, str] | None:
    try:
        call = read_json(text)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"].strip():
            return None
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        return whole(call["name"]), spelled(arguments)
    except (ValueError, RecursionError):
        return None
