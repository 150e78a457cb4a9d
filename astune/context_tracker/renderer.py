"""The door between messages and tokens: one renderer for each family of chat templates.

A renderer says what each message adds to the tokens before it. It never renders a conversation anew, and it
never turns sampled tokens into text and back. The tracker knows renderers by this protocol alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from astune.schema import Message

Tool = dict[str, Any]
"""A tool's JSON schema in the OpenAI shape."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Sampled tokens as the agent gets to read them."""

    content: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)


class Renderer(Protocol):
    """What a family of chat templates adds to a conversation, message by message."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer; the first is the template's own end of a turn."""
        ...

    def deltas(self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        """The tokens that each of `new` adds after `history`, a conversation that is closed.

        Raises:
            WorkflowError: the template cannot express a message or the tools.
        """
        ...

    def generation_prompt(self) -> list[int]:
        """The tokens that ask the model for its next message."""
        ...

    def closing(self, sampled_ids: Sequence[int]) -> list[int]:
        """What is missing after a sampled answer until the next message may begin."""
        ...

    def parse(self, sampled_ids: Sequence[int]) -> Reply:
        """Read a sampled answer."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included, for people to read."""
        ...


def load_renderer(folder: Path) -> Renderer:
    """The renderer of the model in `folder`, derived from its own chat template and checked against it.

    Raises:
        ConfigError: the folder has no usable tokenizer or template, or the template cannot be extended.
    """
    from astune.context_tracker.chatml import ChatMLRenderer

    return ChatMLRenderer.load(folder)
