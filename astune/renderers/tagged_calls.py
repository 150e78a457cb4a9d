"""The settled part of an answer whose calls are between tags, for streaming calls while they are sampled.

    I look. <tool_call>{"name": "look", "arguments": {"city": "Ro

is the text "I look." and the beginning of a call, provided that an answer with a malformed call is never read. In the
place of the unfinished call a whole one is read, with every ending: if the reader finds it each time, it is a call's
place. Calls that are not JSON are settled when they are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from astune.renderers.call_json import beginning_of_call
from astune.renderers.renderer import Reply
from astune.renderers.settled import Settled, SettledCall, settled_text
from astune.renderers.template import ChatTemplate

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_PROBE = ("probe", '{"depth": 7}')


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A template's calls between tags.

    `block` are the tokens of the probe's call, and `tags` those of both tags; None if they are read as letters.
    """

    template: ChatTemplate
    block: list[int]
    in_json: bool
    tags: tuple[int, int] | None

    @classmethod
    def find(cls, template: ChatTemplate, called: str | None, *, as_letters: bool) -> TaggedCalls | None:
        """Return how calls are written in `called`, the probe's answer; None where they are not between tags.

        Args:
            as_letters: whether the reader finds tags in the text, be they tokens of their own or not.
        """
        _, opening, rest = (called or "").partition(OPENING)
        written, closing, _ = rest.partition(CLOSING)
        if not (opening and closing):
            return None
        tags: tuple[int, int] | None = None
        if not as_letters:
            match [template.encode(tag) for tag in (OPENING, CLOSING)]:
                case [[int(start)], [int(end)]] if {start, end} <= template.added_ids:
                    tags = start, end
                case _:
                    return None
        block = template.encode(f"{OPENING}{written}{CLOSING}")
        return cls(template, block, beginning_of_call(written) == _PROBE, tags)

    def settled(
        self, read: Callable[[Sequence[int]], Reply], sampled_ids: Sequence[int], endings: Sequence[Sequence[int]]
    ) -> Settled | None:
        """Return what is settled of an answer with a call; None if it has none yet, or if that is not certain.

        Args:
            sampled_ids: the answer so far, without the token that ends it.
            endings: tokens for each case in which the parser reinterprets the preceding text.
        """
        split = self._split(sampled_ids)
        known = None if split is None else read(split[0])
        if split is None or known is None or known.malformed or not (known.tool_calls or split[1] is not None):
            return None
        before, begun = split
        replies = [read([*before, *self.block, *ending]) for ending in endings]
        n = len(known.tool_calls) + 1
        heads = {(each.reasoning, each.content, *each.tool_calls[:n]) for each in replies if not each.malformed}
        if len(heads) != 1:
            return None
        ((reasoning, content, *calls),) = heads
        if calls != [*known.tool_calls, _PROBE]:
            return None
        begun_call = beginning_of_call(begun) if begun is not None and self.in_json else None
        sure = [*known.tool_calls, *([begun_call] if begun_call is not None else ())]
        return Settled(reasoning or "", content, tuple(SettledCall(*call) for call in sure))

    def _split(self, sampled_ids: Sequence[int]) -> tuple[Sequence[int], str | None] | None:
        """The tokens before a call that is not closed, and the text within it; None if all calls are closed.

        None as a whole where the text before has no tokens that spell it.
        """
        decode = self.template.decode
        if self.tags is not None:
            opened: int | None = None
            for at, token in enumerate(sampled_ids):
                if token == self.tags[1]:
                    opened = None
                elif token == self.tags[0] and opened is None:
                    opened = at
            if opened is None:
                return sampled_ids, None
            return sampled_ids[:opened], settled_text(decode(sampled_ids[opened + 1 :]))
        text = settled_text(decode(sampled_ids))
        end = text.rfind(CLOSING) + len(CLOSING) if CLOSING in text else 0
        start = text.find(OPENING, end)
        before = text if start < 0 else text[:start]
        token_ids = self.template.encode_plain(before)
        if decode(token_ids) != before:
            return None
        return token_ids, None if start < 0 else text[start + len(OPENING) :]
