"""Conversation of one call: an agent's messages as sent and in canonical form, with the tools that it offered.

It determines whether later messages extend it; it has no tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.renderers.messages import canonical
from astune.renderers.renderer import Tool
from astune.schema import Message, WorkflowError


@dataclass(frozen=True, slots=True)
class Conversation:
    """An agent's messages as it sent them, and in canonical form.

    `structured` are the positions of those that hold more than texts.
    """

    agent: str
    sent: list[Message]
    plain: list[Message]
    structured: list[int]
    tools_key: str

    def begins(self, messages: Sequence[Message]) -> bool:
        """Return whether `messages` extend this conversation: equal in every value and type.

        1 and True are equal in Python, but different JSON.
        """
        beginning = list(messages[: len(self.sent)])
        return beginning == self.sent and all(repr(beginning[at]) == repr(self.sent[at]) for at in self.structured)

    @classmethod
    def of(
        cls, agent: str, messages: Sequence[Message], tools: Sequence[Tool], going_on: Conversation | None
    ) -> Conversation:
        """Copy the agent's messages, which it may later change; copies in `going_on` are reused."""
        old = going_on if going_on is not None else cls(agent, [], [], [], "")
        new = copy.deepcopy(list(messages[len(old.sent) :]))
        plain = [*old.plain, *map(canonical, new)]
        structured = [
            at
            for at, message in enumerate(new, len(old.sent))
            if any(type(value) is not str for value in message.values())
        ]
        return cls(
            agent,
            [*old.sent, *new],
            plain,
            [*old.structured, *structured],
            tools_key_of(tools),
        )


@dataclass(frozen=True, slots=True)
class Tip:
    """Position of an agent's last call: its conversation, the node of the last message, and the messages and tokens of
    the answer's path. Extending it costs time only for the new messages."""

    conversation: Conversation
    node: int
    answer: int
    path: list[Message]
    path_ids: list[int]


def require_messages(messages: Sequence[Message]) -> None:
    """Raise WorkflowError where a model is called with something else than a list of messages."""
    if isinstance(messages, Mapping | str):
        raise WorkflowError(
            f"the model was called with {messages!r} instead of a list of messages", hint="put it into a list"
        )
    if not messages:
        raise WorkflowError("the model was called without messages", hint="pass at least one message")


def tools_key_of(tools: Sequence[Tool]) -> str:
    """Key by which two sets of tools are equal."""
    return repr(list(tools)) if tools else ""
