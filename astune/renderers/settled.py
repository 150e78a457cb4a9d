"""The part of an unfinished answer that no continuation can change, for streams.

What an agent is sent has to be the beginning of the message that is recorded. A reader decides at the end only: text
behind an unclosed `<tool_call>` may be a call or text, and a thought loses its outer whitespace where it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from astune.renderers.beginnings import common_beginning
from astune.renderers.renderer import Reply

MARKERS = ("<tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "<function=", "<|python_tag|>")
"""Texts at which readers divide an answer, also where a tokenizer has no token for them."""
_NO_CHARACTER = "\ufffd"
"""What the first bytes of a character decode to."""


class Settled(NamedTuple):
    """The beginning of a reply."""

    reasoning: str = ""
    content: str = ""


def settled_text(text: str) -> str:
    """Text without a character whose bytes are not all there."""
    return text.rstrip(_NO_CHARACTER)


def settled_by_probing(
    read: Callable[[Sequence[int]], Reply], sampled_ids: Sequence[int], endings: Sequence[Sequence[int]]
) -> Settled:
    """What replies agree on, whichever of `endings` the answer gets.

    Args:
        sampled_ids: the answer up to the first control token behind which its reader may change its mind.
        endings: tokens that show each way in which the reader takes back what stands before.

    Content that begins as JSON is not settled, since Llama's models write calls so; nor is content that begins with
    whitespace, which stays only where no call follows.
    """
    replies = [read([*sampled_ids, *ending]) for ending in endings]
    thoughts = [reply.reasoning or "" for reply in replies]
    if len(set(thoughts)) > 1:
        return Settled(_before_markers(_agreed(thoughts)))
    content = _agreed([reply.content for reply in replies])
    vague = content[:1].isspace() or content.startswith("{")
    return Settled(thoughts[0], "" if vague else _before_markers(content))


def _agreed(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return first[: common_beginning(first, last)]


def _before_markers(text: str) -> str:
    """Text up to the first marker, or the beginning of one, and without the whitespace that a reader may strip."""
    ends = [text.find(marker) for marker in MARKERS if marker in text]
    text = settled_text(text[: min(ends, default=len(text))])
    longest = max(begun(text, marker) for marker in MARKERS)
    return text[: len(text) - longest].rstrip()


def begun(text: str, marker: str) -> int:
    """How many of the marker's first characters the text ends with."""
    return next((n for n in range(min(len(marker), len(text)), 0, -1) if text.endswith(marker[:n])), 0)
