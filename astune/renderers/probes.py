"""Probe conversations for a chat template at load time: plain ones, odd texts, a tool and its call."""

from __future__ import annotations

from astune.renderers.renderer import Tool
from astune.schema import Message

QUESTION: list[Message] = [{"role": "user", "content": "Probe?"}]
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]},
    },
}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": '{"depth": 7}'}}],
}


def talk(*turns: str) -> list[Message]:
    """Return 'user: text' and so on as messages."""
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


PROBES = [
    talk("user: 1+1?", "assistant: 2", "user: Sure?", "assistant: Yes.", "user: and 3+3?"),
    talk("user: \n\nlines\n\n", "assistant: spaced out", "user: \ttab\t"),
    talk("user: ünïcödé 漢字 🙂", "assistant: 字 {{ braces }} {% tag %}", "user: <b>"),
]
FREE_PROBES = [
    talk("system: Be brief.", "user: one", "user: two", "assistant: three", "assistant: four", "system: five"),
    talk("user: 1+1?", "assistant: <think>\none and one\n</think>\n\n2", "user: sure?", "assistant: Yes."),
    talk("system:  padded \n", "user: ", "assistant:  spaced ", "user: \ttab\t", "system:  padded \n"),
]
"""Conversations that only templates which frame every message alone can take."""
