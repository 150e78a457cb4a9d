"""Renderer for endpoints that accept messages: each message becomes a sequence of characters.

There is no template, and nothing is rewritten; see `astune/engine/remote/written.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from math import isnan
from typing import Any

from astune.engine.remote.written import END, read, written, written_tools
from astune.renderers.call_json import is_readable, spelled
from astune.renderers.renderer import Rendered, Renderer, Reply, Tool
from astune.renderers.settled import Settled
from astune.schema import Forest, Grammar, Message, Vocabulary, WorkflowError


def is_in_characters(forest: Forest) -> bool:
    """Return whether a recorded episode used such an endpoint and so has no log-probabilities."""
    return any(isnan(node.logprobs[0]) for node in forest.nodes if node.logprobs)


def renderer_of(forest: Forest, renderer: Renderer) -> Renderer:
    """Return the renderer for a recorded episode: the model's own `renderer`, or that of a text endpoint."""
    return TextRenderer() if is_in_characters(forest) else renderer


class TextRenderer:
    """Implements `Renderer` for `TextEndpointEngine`."""

    stop_token_ids = (END,)

    def on(self, day: date) -> TextRenderer:
        return self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        first, *others = self._deltas(messages)
        return Rendered([[*written_tools(tools), *first], *others], [])

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        return Rendered(self._deltas(new), [])

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        message = self._message(sampled_ids)
        calls: list[tuple[str, str]] = []
        malformed: list[str] = []
        for function in (call["function"] for call in message.get("tool_calls", ())):
            name, arguments = function.get("name"), function.get("arguments") or "{}"
            if is_readable(name, arguments, arguments):
                calls.append((name, spelled(arguments)))
            else:
                malformed.append(json.dumps({"name": name, "arguments": arguments}))
        content = "\n".join(part for part in (message["content"], *malformed) if part)
        return Reply(content, message.get("reasoning_content"), calls, malformed)

    def settled(
        self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool], *, calls: bool = False
    ) -> Settled:
        return Settled()  # an endpoint answers at once

    def text(self, sampled_ids: Sequence[int]) -> str:
        return self._message(sampled_ids)["content"]

    def call_grammar(self, tools: Sequence[Tool]) -> Grammar:
        return Grammar("call", json.dumps([tool["function"]["name"] for tool in tools]))

    def is_longer(self, text: str, tokens: int) -> bool:
        return len(text) > tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(None)

    def _message(self, sampled_ids: Sequence[int]) -> dict[str, Any]:
        (message,), _ = read(sampled_ids)
        return message

    def _deltas(self, messages: Sequence[Message]) -> list[list[int]]:
        for message in messages:
            if message.get("images"):
                raise WorkflowError(
                    "images are not supported with a text endpoint", hint="leave them out of the messages"
                )
        return [written(message) for message in messages]
