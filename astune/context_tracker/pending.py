"""A model call whose prompt was prepared and whose answer is not recorded yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.context_tracker.conversation import Conversation
from astune.renderers.renderer import Rendered, Tool
from astune.schema import Grammar, Message


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call without its answer.

    `known` are the messages of the path to `parent`, `new` those after it, and `rendered` the tokens that these add.
    `rewritten` is True if the template now renders recorded history differently.
    """

    prompt_ids: list[int]
    agent: str
    trainable: bool
    parent: int | None
    known: list[Message]
    new: list[Message]
    rendered: Rendered
    tools: Sequence[Tool]
    rewritten: bool
    conversation: Conversation
    form: Grammar | None
    """Required form of the answer."""
    literal: bool
    """True if the answer is plain text, whatever the model's parser would find in it."""
    stop: Sequence[str]
    """Texts at which the answer ends."""
    asked_after: int
    """Number of answers at the time of the call."""
