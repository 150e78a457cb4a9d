"""Implicit opinions, derived from sessions by named rules. They have less weight than explicit ratings.

repeated_question   the same was asked again                                  -1, weight 0.3
reworded_question   nearly the same, with the same numbers, was asked again    -0.5, weight 0.3
edited_answer       the conversation went on with another answer than ours    the better answer, -0.5, weight 0.5
abandoned_session   the session ends with a question from the assistant       -0.5, weight 0.1
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from astune.env_service.base import last_question, text_of
from astune.feedback.interaction import Interaction, Rating
from astune.schema import Message

_ALIKE = 0.6
"""The part of two questions' words that is the same where one is the other in other words."""
_NUMBER = re.compile(r"[-+*/^×÷]?\s*\d+(?:[.,]\d+)*")
"""A number and the sign before it: `12 + 5` and `12 - 5` are different questions."""


def implicit_ratings(interactions: Iterable[Interaction]) -> Iterator[Rating]:
    """The ratings that the rules derive from interactions, which come by session and time."""
    for session, of_it in itertools.groupby(interactions, key=lambda each: each.session):
        if session:
            of_users: dict[str, list[Interaction]] = {}
            for turn in of_it:  # users who begin alike share a session that nobody named
                of_users.setdefault(turn.user, []).append(turn)
            for turns in of_users.values():
                yield from _of_session(turns)


def _of_session(turns: Sequence[Interaction]) -> Iterator[Rating]:
    for turn, following in itertools.pairwise(turns):
        asked, then = (last_question(each.messages).strip() for each in (turn, following))
        if asked and asked == then and not _is_step_to(turn, following):
            yield _rating(turn, "repeated_question", -1.0, 0.3)
        elif _alike(asked, then):
            yield _rating(turn, "reworded_question", -0.5, 0.3)
        kept = _kept_answer(turn, following)
        if kept is not None and kept != text_of(turn.messages[-1]):
            yield _rating(turn, "edited_answer", -0.5, 0.5, corrected=kept)
    last = text_of(turns[-1].messages[-1]).rstrip()
    if last.endswith(("?", "？")):
        yield _rating(turns[-1], "abandoned_session", -0.5, 0.1)


def _rating(turn: Interaction, rule: str, rating: float, weight: float, corrected: str | None = None) -> Rating:
    return Rating(
        turn.interaction_id,
        rating,
        corrected_answer=corrected,
        user=turn.user,
        kind=f"implicit:{rule}",
        weight=weight,
        created_at=turn.created_at,
    )


def _alike(one: str, other: str) -> bool:
    if _numbers(one) != _numbers(other):
        return False
    words, others = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return bool(words and others) and one != other and len(words & others) / len(words | others) >= _ALIKE


def _numbers(text: str) -> Counter[str]:
    return Counter("".join(each.split()) for each in _NUMBER.findall(text))


def _is_step_to(turn: Interaction, following: Interaction) -> bool:
    """Whether both answer the question as it was asked once, such as before and after a tool's result."""
    added = following.messages[len(turn.messages) :]
    return _goes_on(turn, following) and all(message.get("role") != "user" for message in added)


def _goes_on(turn: Interaction, following: Interaction) -> bool:
    """Whether the following turn has an answer in the place of this one's, which is not its own last one."""
    place = len(turn.messages) - 1
    return len(following.messages) > place + 1 and _same(turn.messages[:place], following.messages[:place])


def _kept_answer(turn: Interaction, following: Interaction) -> str | None:
    """The answer that the following turn has in place of this one; None where it does not continue from it."""
    place = len(turn.messages) - 1
    if not _goes_on(turn, following):
        return None
    answer = following.messages[place]
    return text_of(answer) if answer.get("role") == "assistant" and not answer.get("tool_calls") else None


def _same(messages: Sequence[Message], others: Sequence[Message]) -> bool:
    return [(m.get("role"), text_of(m)) for m in messages] == [(m.get("role"), text_of(m)) for m in others]
