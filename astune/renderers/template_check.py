"""Check of a chat template on multi-turn conversations: the report of `astune check template`.

Each conversation is extended after each of its answers, by every number of following messages, and compared with a full
render. The template's own rendering of an answer stands in for sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from astune.renderers.beginnings import common_beginning
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


def _message(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


_ASK = _message("user", "How is the weather in Oslo?")
_CALLS = _message("assistant", "", tool_calls=[_call(1, "weather", "Oslo")])
_TWO_CALLS = _message("assistant", "", tool_calls=[_call(1, "weather", "Oslo"), _call(2, "population", "Rome")])
_RESULT = _message("tool", "Snow.", tool_call_id="call00001", name="weather")
_SECOND_RESULT = _message("tool", "2.7 million", tool_call_id="call00002", name="population")

CONVERSATIONS: dict[str, list[Message]] = {
    "chat": [
        _message("user", "Name a colour."),
        _message("assistant", "Blue."),
        _message("user", "Another?"),
        _message("assistant", "Red."),
        _message("user", "Thanks."),
    ],
    "chat with a system message": [
        _message("system", "Be brief."),
        _message("user", "Name a colour."),
        _message("assistant", "Blue."),
        _message("user", "Another?"),
    ],
    "two users' messages in a row": [
        _message("user", "Name a colour."),
        _message("assistant", "Blue."),
        _message("user", "Another?"),
        _message("user", "Quickly!"),
    ],
    "an answer that the agent wrote": [
        _message("user", "Name a colour."),
        _message("assistant", "Blue."),
        _message("user", "Another?"),
        _message("assistant", "Red."),
        _message("user", "And one more?"),
    ],
    "reasoning, then another question": [
        _message("user", "Name a colour."),
        _message("assistant", "Blue.", reasoning_content="The sky is blue."),
        _message("user", "Another?"),
    ],
    "a tool call and its result": [
        _ASK,
        _CALLS,
        _RESULT,
        _message("assistant", "It snows."),
        _message("user", "Thanks."),
    ],
    "two calls and their results": [_ASK, _TWO_CALLS, _RESULT, _SECOND_RESULT, _message("assistant", "It snows.")],
    "reasoning between tool calls": [
        _ASK,
        {**_CALLS, "reasoning_content": "I have to look it up."},
        _RESULT,
        {**_CALLS, "tool_calls": [_call(3, "population", "Oslo")], "reasoning_content": "And now the people."},
        _message("tool", "700,000", tool_call_id="call00003", name="population"),
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
