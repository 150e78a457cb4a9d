"""Check of a chat template on multi-turn conversations: the report of `astune check template`.

Each conversation is extended after each of its answers, by every number of following messages, and compared with a full
render. The template's own rendering of an answer stands in for sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from astune.renderers.beginnings import common_beginning
from astune.renderers.probes import talk
from astune.renderers.renderer import Tool
from astune.renderers.template import ChatTemplate
from astune.renderers.template_renderer import TemplateRenderer
from astune.schema import Message, WorkflowError

Outcome = Literal["equal", "rewritten", "differs", "refused"]

TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Find the {name}.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "population")
]


def _call(number: int, name: str, city: str) -> dict[str, Any]:
    function = {"name": name, "arguments": f'{{"city": "{city}"}}'}
    return {"id": f"call{number:05d}", "type": "function", "function": function}


def _calling(*calls: dict[str, Any], **more: Any) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def _result(content: str, number: int, name: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": f"call{number:05d}", "name": name}


_COLOUR = ("user: Name a colour.", "assistant: Blue.", "user: Another?")
_ASK = talk("user: How is the weather in Oslo?")
_WEATHER, _SNOW = _call(1, "weather", "Oslo"), _result("Snow.", 1, "weather")
CONVERSATIONS: dict[str, list[Message]] = {
    "chat": talk(*_COLOUR, "assistant: Red.", "user: Thanks."),
    "chat with a system message": talk("system: Be brief.", *_COLOUR),
    "two users' messages in a row": talk(*_COLOUR, "user: Quickly!"),
    "an answer that the agent wrote": talk(*_COLOUR, "assistant: Red.", "user: And one more?"),
    "reasoning, then another question": [
        {**message, "reasoning_content": "The sky is blue."} if message["role"] == "assistant" else message
        for message in talk(*_COLOUR)
    ],
    "a tool call and its result": [
        *_ASK,
        _calling(_WEATHER),
        _SNOW,
        *talk("assistant: It snows.", "user: Thanks."),
    ],
    "two calls and their results": [
        *_ASK,
        _calling(_WEATHER, _call(2, "population", "Rome")),
        _SNOW,
        _result("2.7 million", 2, "population"),
        *talk("assistant: It snows."),
    ],
    "reasoning between tool calls": [
        *_ASK,
        _calling(_WEATHER, reasoning_content="I have to look it up."),
        _SNOW,
        _calling(_call(3, "population", "Oslo"), reasoning_content="And now the people."),
        _result("700,000", 3, "population"),
    ],
}


@dataclass(frozen=True, slots=True)
class Extension:
    """Extension of a conversation after one answer.

    `again` counts tokens that have to be re-read because the template now renders them differently.
    """

    conversation: str
    outcome: Outcome
    again: int = 0
    detail: str = ""


def check_template(template: ChatTemplate) -> Iterator[Extension]:
    """Extend every conversation in every way.

    Raises:
        ConfigError: the template is unusable.
    """
    renderer = TemplateRenderer(template)
    for name, conversation in CONVERSATIONS.items():
        tools = TOOLS if any("tool_calls" in message for message in conversation) else []
        for at, message in enumerate(conversation):
            if message["role"] != "assistant":
                continue
            for end in range(at + 1, len(conversation) + 1):
                if end == len(conversation) or conversation[end - 1]["role"] != "assistant":
                    yield _extended(renderer, name, conversation[:end], at + 1, tools)


def _extended(
    renderer: TemplateRenderer, name: str, conversation: list[Message], known: int, tools: list[Tool]
) -> Extension:
    history, new = conversation[:known], conversation[known:]
    try:
        asked = renderer.render(history[:-1], tools).token_ids
        answered = renderer.answer_ids(history, tools)
        whole = renderer.render(conversation, tools).token_ids
        added = renderer.extend(history, answered, new, tools)
    except WorkflowError as refusal:
        return Extension(name, "refused", detail=str(refusal))
    path = [*asked, *answered]
    if added is None:
        return Extension(name, "rewritten", again=len(path) - common_beginning(path, whole))
    extended = [*path, *added.token_ids]
    texts = renderer.decode(extended), renderer.decode(whole)
    if texts[0] == texts[1] and whole[len(whole) - len(added.token_ids) :] == added.token_ids:
        return Extension(name, "equal")
    at = max(0, common_beginning(*texts) - 10)
    return Extension(name, "differs", detail=f"extended {texts[0][at : at + 60]!r}, whole {texts[1][at : at + 60]!r}")
