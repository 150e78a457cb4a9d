"""A conversation's question, as it is compared with others: of users' feedback, of tasks and of validation sets."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from astune.env_service.base import text_of
from astune.schema import Message

_DISTINCT_WORDS = 4
_WITHOUT_BLANKS = re.compile("[\u3001-\u30ff\u3400-\u9fff\uff01-\uff1f]")
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
"""Soft hyphens, joiners, marks of direction and tags."""


def question_in(messages: Sequence[Message]) -> str:
    """The last question: the user's last message, and as many before it as it takes to distinguish conversations, since
    many end in "Continue". Empty where no user wrote anything."""
    texts = [text_of(message) for message in messages if message.get("role") == "user"]
    question = texts.pop() if texts else ""
    while texts and _n_words(question) < _DISTINCT_WORDS:
        question = f"{texts.pop()}\n{question}"
    return question


def asked(messages: Sequence[Message]) -> str:
    """The last question, made `plain`."""
    return plain(question_in(messages))


def _n_words(text: str) -> float:
    """Words between blanks, and half a word for each character of a script that has no blanks."""
    rest, n = _WITHOUT_BLANKS.subn(" ", text)
    return len(rest.split()) + n / 2


def plain(text: str) -> str:
    """A text normalised for comparison: lower case, one form of each character, single blanks, nothing invisible."""
    return re.sub(r"\s+", " ", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))).strip().casefold()
