"""Stop sequences: texts at which an agent wants an answer to end, and that it is not sent.

    sampled   "Thought: add them.\nObserv" "ation: 6"     stop   "Observation:"
    sent      "Thought: add them.\n"

Sampling ends with the token that completes one. All tokens up to it stay in the record, and so in later prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from astune.renderers.renderer import Reply
from astune.renderers.settled import Settled, begun

_MORE_TOKENS = 8
"""Tokens looked at beyond those that a sequence can fill: the first ones may decode to part of a character."""


class StopWatch:
    """Tells with which token an answer ends."""

    def __init__(self, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stop = stop
        self._decode = decode
        self._tokens = max((len(text.encode()) for text in stop), default=0) + _MORE_TOKENS
        self._last: list[int] = []

    def ends_with(self, token: int) -> bool:
        """Whether the answer's next token completes a sequence."""
        if not self._stop:
            return False
        self._last = [*self._last[1 - self._tokens :], token]
        text = self._decode(self._last)
        return any(each in text for each in self._stop)


def sequence_in(reply: Reply, stop: Sequence[str]) -> str | None:
    """The sequence that comes first in what an agent would read; None where none does."""
    for text in (reply.reasoning or "", reply.content):
        found = [(text.find(each), each) for each in stop if each in text]
        if found:
            return min(found)[1]
    return None


def before(reply: Reply, stopped_by: str | None) -> Reply:
    """The reply up to the sequence that ended it."""
    if stopped_by is None:
        return reply
    if reply.reasoning and stopped_by in reply.reasoning:
        return Reply("", reply.reasoning.partition(stopped_by)[0])
    return replace(reply, content=reply.content.partition(stopped_by)[0])


def settled_before(part: Settled, stop: Sequence[str]) -> Settled:
    """A settled beginning without what may be the beginning of a sequence."""
    thought = _held_back(part.reasoning, stop)
    return Settled(thought, "") if thought != part.reasoning else Settled(thought, _held_back(part.content, stop))


def _held_back(text: str, stop: Sequence[str]) -> str:
    found = [text.find(each) for each in stop if each in text]
    if found:
        return text[: min(found)]
    return text[: len(text) - max((begun(text, each) for each in stop), default=0)]
