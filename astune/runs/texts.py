"""Plain text of messages for display and search: without control tokens, every message once."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from astune.schema import Forest

SNIPPET_CHARACTERS = 60
"""Characters shown on each side of a match."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A match with its surrounding text."""

    before: str
    match: str
    after: str


def message_text(content: Any, tool_calls: Sequence[dict[str, Any]] = ()) -> str:
    """Return a message's content as text: blocks joined, tool calls as `name(arguments)`."""
    if isinstance(content, str):
        parts = [content]
    elif isinstance(content, list | tuple):
        parts = [_block_text(block) for block in content]
    else:
        parts = [] if content is None else [json.dumps(content, ensure_ascii=False, default=str)]
    for call in tool_calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        if isinstance(function, dict):
            parts.append(f"{function.get('name', '?')}({function.get('arguments', '')})")
    return "\n".join(part for part in parts if part)


def forest_text(forest: Forest) -> str:
    """Return all messages of an episode, reasoning before content."""
    return joined((node.reasoning, node.content, node.tool_calls) for node in forest.nodes)


def joined(messages: Iterable[tuple[str | None, Any, Sequence[dict[str, Any]]]]) -> str:
    """Join messages given as (reasoning, content, tool calls)."""
    texts = (text for reasoning, *rest in messages for text in (reasoning, message_text(*rest)))
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def folded(text: str) -> bytes:
    """Fold text for comparison: case-insensitive in any script, as UTF-8, in which a byte search finds whole
    characters."""
    return text.casefold().encode("utf-8", "replace")


def find_text(text: str, sought: str) -> Snippet | None:
    """Return the first match of `sought` in `text`, ignoring case; None if there is none."""
    needle, haystack = sought.casefold(), text.casefold()
    start = haystack.find(needle)
    if start < 0:
        return None
    end = start + len(needle)
    if len(haystack) != len(text):  # some letters fold into several, as ß into ss
        ends = list(accumulate(len(character.casefold()) for character in text))
        start, end = bisect_right(ends, start), bisect_right(ends, end - 1) + 1
    before = text[max(0, start - SNIPPET_CHARACTERS) : start]
    return Snippet(before, text[start:end], text[end : end + SNIPPET_CHARACTERS])


def _block_text(block: Any) -> str:
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        return block["text"]
    return block if isinstance(block, str) else json.dumps(block, ensure_ascii=False, default=str)
