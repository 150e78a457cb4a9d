"""The feedback of one turn: conversations and ratings, each once, and what was removed by which rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from astune.env_service.base import text_of
from astune.feedback.interaction import EXPLICIT, Interaction, Rating
from astune.feedback.question import asked, plain
from astune.schema import Task


@dataclass(frozen=True, slots=True)
class Dropped:
    """A rating or a conversation that a rule removed.

    `interaction` is the conversation's id, `rater` a digest or a client's name, `why` a person's words.
    """

    rule: str
    interaction: str
    rater: str
    why: str
    whole: bool = False
    """True for a conversation; each of its ratings has a row of its own."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


class Evidence:
    """Input of the filters; rules remove from it and record that in `dropped`.

    Args:
        arrived: the turn in which each rating first came, by the rating's digest; one that is missing came in this one.
    """

    def __init__(
        self, interactions: Iterable[Interaction], ratings: Iterable[Rating], arrived: Mapping[str, int] | None = None
    ) -> None:
        self.interactions = {each.interaction_id: each for each in interactions}
        self.dropped: list[Dropped] = []
        self._arrived = arrived or {}
        self._ratings: dict[int, Rating] = {}
        self._of: dict[str, list[int]] = defaultdict(list)
        for key, each in enumerate(ratings):
            if each.interaction_id in self.interactions:
                self._ratings[key] = each
                self._of[each.interaction_id].append(key)
        self._keys = {id(each): key for key, each in self._ratings.items()}
        self._compared = {identity: _compared(each) for identity, each in self.interactions.items()}

    @property
    def ratings(self) -> list[Rating]:
        return list(self._ratings.values())

    @property
    def explicit(self) -> list[Rating]:
        return [each for each in self._ratings.values() if each.kind == EXPLICIT]

    def rater(self, rating: Rating) -> str:
        """The source of a rating: the user who gave it, else the conversation's user, else the client."""
        of = self.interactions[rating.interaction_id]
        return rating.user or of.user or f"client {of.client or 'unknown'}"

    def turn(self, rating: Rating) -> int | None:
        """The turn in which a rating first came; None for the newest."""
        return self._arrived.get(rating.digest)

    def question(self, rating: Rating) -> str:
        return self._compared[rating.interaction_id][0]

    def answer(self, rating: Rating) -> str:
        return self._compared[rating.interaction_id][1]

    def drop(self, rule: str, ratings: Iterable[Rating], why: str) -> None:
        """Take ratings out, those that are still there."""
        for key in sorted({self._keys[id(each)] for each in ratings}):
            if key in self._ratings:
                each = self._ratings.pop(key)
                self.dropped.append(Dropped(rule, each.interaction_id, self.rater(each), why))

    def drop_whole(self, rule: str, interaction_id: str, why: str) -> None:
        """Take a conversation out, with all its ratings."""
        of = self.interactions[interaction_id]
        self.dropped.append(Dropped(rule, interaction_id, of.user or f"client {of.client or 'unknown'}", why, True))
        self.drop(rule, [self._ratings[key] for key in self._of[interaction_id] if key in self._ratings], why)
        del self.interactions[interaction_id]


def _compared(interaction: Interaction) -> tuple[str, str]:
    """The question and the answer of a conversation, as they are compared with others."""
    return asked(interaction.messages), plain(text_of(interaction.messages[-1]))


def asked_by(task: Task) -> str:
    """The question of a task, as `asked` compares it with others."""
    return asked(task.init_messages or [{"role": "user", "content": task.main_query}])
