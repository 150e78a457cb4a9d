"""An answer of a model with the conversation that led to it, and one opinion of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from astune.schema import Message

EXPLICIT = "explicit"
"""The kind of an explicit rating; other kinds are `implicit:` and the name of the rule that found it."""


@dataclass(frozen=True, slots=True)
class Interaction:
    """The last of `messages` is the answer, in the OpenAI shape as all others.

    `interaction_id` is what ratings name: the answer's id, or the trace's. `created_at` is in seconds since 1970.
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

    @property
    def digest(self) -> str:
        """A name of the content: equal conversations with equal answers have the same."""
        return digest_of([self.session, self.messages, self.tools])


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
