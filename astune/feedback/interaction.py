"""An answer of a model with the conversation that led to it, and one opinion of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from astune.schema import Message
from astune.schema.plain_json import require_text

EXPLICIT = "explicit"
"""The kind of an explicit rating; other kinds are `implicit:` and the name of the rule that found it."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """The last of `messages` is the answer, in the OpenAI shape as all others.

    `interaction_id` is what ratings name: the answer's id, or the trace's. `created_at` is in seconds since 1970.
    Tokens read and sampled are None where they were not counted.
    """

    interaction_id: str
    messages: list[Message]
    session: str = ""
    user: str = ""
    client: str = ""
    model: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    source: str = ""
    created_at: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def digest(self) -> str:
        """A name of the content: equal conversations with equal answers have the same."""
        return digest_of([self.session, self.messages, self.tools])


def check_conversation(interaction: Interaction) -> None:
    """Raises ValueError if its messages are none that a model could have been given and answered, or a text cannot be
    stored."""
    for at, message in enumerate(interaction.messages, 1):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise ValueError(f"message {at} has no role")
        blocks = content if isinstance(content, list) else []
        if not isinstance(content, str | list | None) or not all(isinstance(each, str | dict) for each in blocks):
            raise ValueError(f"message {at}: the content is neither a text nor a list of blocks")
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(each, dict) for each in calls):
            raise ValueError(f"message {at}: 'tool_calls' is no list of calls")
    if not interaction.messages or interaction.messages[-1]["role"] != "assistant":
        raise ValueError("the last message is no answer of an assistant")
    if not isinstance(interaction.tools, list) or not all(isinstance(each, dict) for each in interaction.tools):
        raise ValueError("'tools' is no list of tools")
    require_text(asdict(interaction))


@dataclass(frozen=True, slots=True)
class Rating:
    """An opinion of one interaction: -1, 0, 1 or a score, a comment, a better answer, or several of these."""

    interaction_id: str
    rating: float | None = None
    comment: str = ""
    corrected_answer: str | None = None
    user: str = ""
    kind: str = EXPLICIT
    weight: float = 1.0
    created_at: float = 0.0

    @property
    def digest(self) -> str:
        return digest_of([self.interaction_id, self.rating, self.comment, self.corrected_answer, self.user, self.kind])


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
