"""A call's conversation: an agent's messages as it sent them and in canonical form, with the tools that it offered.

It knows whether later messages go on from it, and nothing of tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from astune.renderers.messages import canonical
from astune.renderers.renderer import Tool
from astune.schema import Message


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
        """Return whether `messages` go on from here: equal in every value and type.

        1 and True are equal to Python, and different JSON to a model.
        """
        beginning = list(messages[: len(self.sent)])
        return beginning == self.sent and all(repr(beginning[at]) == repr(self.sent[at]) for at in self.structured)

    @classmethod
    def of(
        cls, agent: str, messages: Sequence[Message], tools: Sequence[Tool], going_on: Conversation | None
    ) -> Conversation:
        """Copy what the agent sent, which it may go on to change; copies in `going_on` are made already."""
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


def tools_key_of(tools: Sequence[Tool]) -> str:
    """What makes two offers of tools the same offer."""
    return repr(list(tools)) if tools else ""
