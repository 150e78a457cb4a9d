"""The feedback of one turn: conversations and ratings, each once, and what was taken out of them by which rule."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from astune.env_service.base import text_of
from astune.feedback.interaction import EXPLICIT, Interaction, Rating


@dataclass(frozen=True, slots=True)
class Dropped:
    """A rating, or a conversation with all its ratings, that a rule took out.

    `interaction` is the conversation's id, `rater` a digest or a client's name, `why` a person's words.
    """

    rule: str
    interaction: str
    rater: str
    why: str
    whole: bool = False
    """True where the whole conversation is out."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Evidence:
    """What the filters look at; rules remove from it and say so in `dropped`."""

    interactions: dict[str, Interaction]
    ratings: list[Rating]
    dropped: list[Dropped] = field(default_factory=list)

    @classmethod
    def of(cls, interactions: Iterable[Interaction], ratings: Iterable[Rating]) -> Evidence:
        known = {each.interaction_id: each for each in interactions}
        return cls(known, [each for each in ratings if each.interaction_id in known])

    @property
    def explicit(self) -> list[Rating]:
        return [each for each in self.ratings if each.kind == EXPLICIT]

    def rater(self, rating: Rating) -> str:
        """Who is behind a rating: the user who gave it, else whose conversation it is, else the client."""
        of = self.interactions[rating.interaction_id]
        return rating.user or of.user or f"client {of.client or 'unknown'}"

    def question(self, rating: Rating) -> str:
        return question_of(self.interactions[rating.interaction_id])

    def answer(self, rating: Rating) -> str:
        return plain(text_of(self.interactions[rating.interaction_id].messages[-1]))

    def drop(self, rule: str, ratings: Iterable[Rating], why: str) -> None:
        """Take ratings out."""
        gone = {id(each) for each in ratings}
        if not gone:
            return
        self.dropped += [
            Dropped(rule, each.interaction_id, self.rater(each), why) for each in self.ratings if id(each) in gone
        ]
        self.ratings = [each for each in self.ratings if id(each) not in gone]

    def drop_whole(self, rule: str, interaction_id: str, why: str) -> None:
        """Take a conversation out, with all its ratings."""
        of = self.interactions.pop(interaction_id)
        self.dropped.append(Dropped(rule, interaction_id, of.user or f"client {of.client or 'unknown'}", why, True))
        self.ratings = [each for each in self.ratings if each.interaction_id != interaction_id]


def question_of(interaction: Interaction) -> str:
    """The last question of a conversation, as it is compared with others."""
    asked = [message for message in interaction.messages if message.get("role") == "user"]
    return plain(text_of(asked[-1])) if asked else ""


def plain(text: str) -> str:
    """A text as it is compared: one case, one form of each character, single blanks."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().casefold()
