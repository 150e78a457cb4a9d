"""Positions in a rendered conversation at which the content of each message ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from astune.schema import Message, WorkflowError

MARK = "\u2063{}\u2063"
"""Placeholder that no template contains, to find where the template puts a message's content."""


def ends_by_marks(
    conversation: Sequence[Message], text: str, render: Callable[[Sequence[Message]], str]
) -> list[int] | None:
    """Return the ends found by rendering placeholders as contents; None if that changes anything else."""
    marked = [{**message, "content": MARK.format(i)} for i, message in enumerate(conversation)]
    try:
        rest = render(marked)
    except WorkflowError:
        return None
    ends: list[int] = []
    rebuilt = ""
    for i, message in enumerate(conversation):
        frame, mark, rest = rest.partition(MARK.format(i))
        if not mark:
            return None
        rebuilt += frame + message["content"]
        ends.append(len(rebuilt))
    return ends if rebuilt + rest == text else None


def ends_by_search(
    conversation: Sequence[Message], text: str, left_out: Callable[[str, str], WorkflowError]
) -> list[int]:
    """Return the ends found by searching forward; a template may trim contents, or render them as JSON.

    Raises:
        WorkflowError: `left_out(role, content)` of a message that is not the model's and missing in the text.
    """
    ends: list[int] = []
    last_read = 0
    for message in conversation:
        answered = message["role"] == "assistant"
        end = _end_of(message["content"], text, ends[-1] if ends else 0)
        if end is None and not answered:  # an omitted answer may have been found too far ahead
            end = _end_of(message["content"], text, last_read)
            if end is None:
                raise left_out(message["role"], message["content"])
        ends.append((ends[-1] if ends else 0) if end is None else end)
        last_read = last_read if answered else ends[-1]
    return ends


def _end_of(content: str, text: str, position: int) -> int | None:
    """Return the position at which the content ends in the text after a position: verbatim, trimmed, or within JSON."""
    trimmed = content.strip()
    for spelled in (content, trimmed, json.dumps(trimmed, ensure_ascii=False)[1:-1], json.dumps(trimmed)[1:-1]):
        at = text.find(spelled, position)
        if at >= 0:
            return at + len(spelled)
    return None
