"""The settled part of an unfinished answer, which no continuation can change, for streaming.

A streamed text has to be a prefix of the recorded message. A parser decides only at the end: text after an unclosed
`<tool_call>` may be a call or text, and reasoning loses its outer whitespace when it is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from astune.renderers.beginnings import common_beginning
from astune.renderers.renderer import Reply

MARKERS = ("<tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "<function=", "<|python_tag|>")
"""Texts at which readers divide an answer, also where a tokenizer has no token for them."""
_NO_CHARACTER = "\ufffd"
"""Decoding of the first bytes of an incomplete character."""


class SettledCall(NamedTuple):
    """A call, or the beginning of one: its arguments may go on. `id` is empty where no tracker has named it."""

    name: str
    arguments: str
    id: str = ""


class Settled(NamedTuple):
    """The beginning of a reply. Where there is a call, `reasoning` and `content` are whole."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[SettledCall, ...] = ()


def endings_of(encode: Callable[[str], list[int]], called: str | None) -> list[list[int]]:
    """Return continuations that make a parser reinterpret the preceding text of an answer.

    Args:
        called: an answer with a call; None if the template cannot express one.
    """
    marks = [text for mark in ("<think>", "</think>") for text in (mark, f"{mark}x")]
    calls = [] if called is None else [called, f"</think>{called}"]
    return [encode(text) if text else [] for text in ("", "x", *marks, *calls)]


def settled_text(text: str) -> str:
    """Return the text without an incomplete character at its end."""
    return text.rstrip(_NO_CHARACTER)


def settled_by_probing(
    read: Callable[[Sequence[int]], Reply], sampled_ids: Sequence[int], endings: Sequence[Sequence[int]]
) -> Settled:
    """Return the common prefix of the replies, whichever of `endings` the answer gets.

    Args:
        sampled_ids: the answer up to the first control token after which its parse may change.
        endings: tokens for each case in which the parser reinterprets the preceding text.

    Content that begins as JSON is not settled, since Llama models write calls this way; nor is leading whitespace,
    which is kept only if no call follows.
    """
    replies = [read([*sampled_ids, *ending]) for ending in endings]
    thoughts = [reply.reasoning or "" for reply in replies]
    if len(set(thoughts)) > 1:
        return Settled(_settled_before_markers(_agreed(thoughts)))
    content = _agreed([reply.content for reply in replies])
    vague = content[:1].isspace() or content.startswith("{")
    return Settled(thoughts[0], "" if vague else _settled_before_markers(content))


def _agreed(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return first[: common_beginning(first, last)]


def before_markers(text: str) -> str:
    """Text up to the first whole marker."""
    return text[: min((text.find(marker) for marker in MARKERS if marker in text), default=len(text))]


def _settled_before_markers(text: str) -> str:
    """Text up to the first marker, or the beginning of one, and without the whitespace that a reader may strip."""
    text = settled_text(before_markers(text))
    longest = max(begun(text, marker) for marker in MARKERS)
    return text[: len(text) - longest].rstrip()


def begun(text: str, marker: str) -> int:
    """Return how many of the marker's first characters the text ends with."""
    return next((n for n in range(min(len(marker), len(text)), 0, -1) if text.endswith(marker[:n])), 0)
