"""Stop sequences: texts at which an agent wants an answer to end; they are not sent to it.

    sampled   "Thought: add them.\nObserv" "ation: 6"     stop   "Observation:"
    sent      "Thought: add them.\n"

Sampling ends with the token that completes one, or soon after it where only later tokens tell that the agent will read
it. All sampled tokens stay in the record, and so in later prompts. Sequences within thoughts and calls end nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from astune.renderers.renderer import Reply
from astune.renderers.settled import Settled, begun

_MORE_TOKENS = 8
"""Tokens looked at beyond those that a sequence can fill: the first ones may decode to part of a character."""
_LOOKS = 16
"""An answer of n tokens is looked at again after n / 16 more at the latest."""
_CLOSINGS = ("</", "|>", "｜>")
"""Parts of the texts that end a thought or a call. Before one, checking at every sequence could take seconds."""


class StopWatch:
    """Tells with which token an answer ends.

    Args:
        decode: the text of tokens, with all that the agent does not read, such as thoughts and calls.
        shows: whether the agent will read a sequence in the answer of these tokens, whatever follows them.
    """

    def __init__(
        self,
        stop: Sequence[str],
        decode: Callable[[Sequence[int]], str],
        shows: Callable[[Sequence[int]], bool],
    ) -> None:
        self._stop = stop
        self._decode = decode
        self._shows = shows
        self._tokens = max((len(text.encode()) for text in stop), default=0) + _MORE_TOKENS
        self._ids: list[int] = []
        self._last: list[int] = []
        self._found = False
        self._closed = False
        self._wait = 0
        self._look_at = 0

    def ends_with(self, token: int) -> bool:
        """Whether the answer ends with this token.

        A sequence that was sampled and is not shown may be a call's or a thought's, or text that a later token
        settles: such an answer is looked at again, less and less often, and at each sequence after a thought's end.
        """
        if not self._stop:
            return False
        self._ids.append(token)
        self._last = [*self._last[1 - self._tokens :], token]
        text = self._decode(self._last)
        self._closed = self._closed or (self._found and any(each in text for each in _CLOSINGS))
        if any(each in text for each in self._stop) and (self._closed or not self._found):
            self._found, self._last, self._wait = True, [], 0
        elif not self._found or len(self._ids) < self._look_at:
            return False
        self._wait = min(2 * self._wait, len(self._ids) // _LOOKS) or 1
        self._look_at = len(self._ids) + self._wait
        return self._shows(self._ids)


def sequence_in(content: str, stop: Sequence[str]) -> str | None:
    """The sequence that comes first in the text that an agent would read; None where none does."""
    return min(((content.find(each), each) for each in stop if each in content), default=(0, None))[1]


def before(reply: Reply, stopped_by: str | None) -> Reply:
    """The reply up to the sequence that ended it. Thoughts and calls may contain any text."""
    return reply if stopped_by is None else replace(reply, content=reply.content.partition(stopped_by)[0])


def settled_before(part: Settled, stop: Sequence[str]) -> Settled:
    """A settled beginning without what may be the beginning of a sequence; text before a call ends with it."""
    if part.calls and sequence_in(part.content, stop) is None:
        return part
    return Settled(part.reasoning, _held_back(part.content, stop))


def _held_back(text: str, stop: Sequence[str]) -> str:
    found = [text.find(each) for each in stop if each in text]
    if found:
        return text[: min(found)]
    return text[: len(text) - max((begun(text, each) for each in stop), default=0)]
