"""The rules of werewolves, without a word about who plays: nights, days, votes, and who has won.

Three werewolves, three villagers, a seer, a witch and a hunter. Nothing here is module-level state: a game is one
`Game` object, and every chance in it comes from the generator that it is given.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol

NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gil", "Hana", "Ivo")
ROLES = ("werewolf",) * 3 + ("villager",) * 3 + ("seer", "witch", "hunter")
NOBODY = "nobody"

Side = Literal["werewolves", "village"]


class Player(Protocol):
    """Interface of a player."""

    async def speak(self, question: str, listeners: Sequence[Any]) -> str:
        """Speak to the other players `listeners`."""
        ...

    async def choose(self, question: str, options: Sequence[str]) -> str:
        """Return one of `options`."""
        ...

    async def receive(self, line: str) -> None:
        """Take note of something."""
        ...


def deal(rng: Random, names: Sequence[str] = NAMES, roles: Sequence[str] = ROLES) -> dict[str, str]:
    """Each player's role, by name."""
    return dict(zip(names, rng.sample(roles, len(roles)), strict=True))


@dataclass
class Game:
    """A game. `log` holds what happened as (day, kind, who, what), for tests and for those who read it."""

    roles: Mapping[str, str]
    players: Mapping[str, Player]
    rng: Random
    discussion_rounds: int = 1
    alive: list[str] = field(init=False)
    log: list[tuple[int, str, str, str]] = field(default_factory=list)
    day: int = 0
    _potions: set[str] = field(default_factory=lambda: {"antidote", "poison"})

    def __post_init__(self) -> None:
        self.alive = list(self.roles)

    async def play(self, max_days: int) -> Side | None:
        """The side that won; None where nobody has after `max_days`."""
        while self.winner() is None and self.day < max_days:
            self.day += 1
            dead = await self._night()
            await self._tell(self.alive, f"Day {self.day}. In the night died: {', '.join(dead) or NOBODY}.")
            await self._bury(dead)
            if self.winner() is None:
                await self._discuss()
                await self._exile()
        return self.winner()

    def winner(self) -> Side | None:
        """Wolves win when they are as many as the others, the village when no wolf is left."""
        wolves = len(self._living("werewolf"))
        if wolves == 0:
            return "village"
        return "werewolves" if 2 * wolves >= len(self.alive) else None

    def _living(self, role: str) -> list[str]:
        return [name for name in self.alive if self.roles[name] == role]

    def _others(self, name: str) -> list[str]:
        return [other for other in self.alive if other != name]

    def _note(self, kind: str, who: str, what: str) -> None:
        self.log.append((self.day, kind, who, what))

    async def _tell(self, names: Sequence[str], line: str) -> None:
        for name in names:
            await self.players[name].receive(line)

    async def _choose(self, kind: str, name: str, question: str, options: Sequence[str]) -> str:
        chosen = await self.players[name].choose(question, options)
        self._note(kind, name, chosen)
        return chosen

    async def _night(self) -> list[str]:
        """The dead of the night, in the order of the seats."""
        attacked = await self._attack()
        dead = {attacked}
        for witch in self._living("witch"):
            dead = await self._brew(witch, attacked)
        for seer in self._living("seer"):
            seen = await self._choose("see", seer, "Whose role do you look at?", self._others(seer))
            is_wolf = self.roles[seen] == "werewolf"
            await self._tell([seer], f"{seen} is {'a werewolf' if is_wolf else 'no werewolf'}.")
        return [name for name in self.alive if name in dead]

    async def _attack(self) -> str:
        """The wolves' victim: each names one, and the others of the pack learn of it."""
        wolves = self._living("werewolf")
        prey = [name for name in self.alive if name not in wolves]
        votes: list[str] = []
        for wolf in wolves:
            votes.append(await self._choose("attack", wolf, "Night. Whom do the werewolves kill?", prey))
            await self._tell([other for other in wolves if other != wolf], f"{wolf} wants to kill {votes[-1]}.")
        return self._most(votes)

    async def _brew(self, witch: str, attacked: str) -> set[str]:
        """The dead after the witch has used a potion, or none."""
        if "antidote" in self._potions:
            question = f"Tonight {attacked} is attacked. Do you use your antidote?"
            if await self._choose("save", witch, question, ("yes", "no")) == "yes":
                self._potions.remove("antidote")
                return set()
        if "poison" in self._potions:
            whom = await self._choose("poison", witch, "Whom do you poison?", (NOBODY, *self._others(witch)))
            if whom != NOBODY:
                self._potions.remove("poison")
                return {attacked, whom}
        return {attacked}

    async def _bury(self, dead: Sequence[str]) -> None:
        """Take the dead out of the game; a hunter among them shoots first."""
        for name in dead:
            self.alive.remove(name)
            self._note("dies", name, self.roles[name])
        for hunter in [name for name in dead if self.roles[name] == "hunter"]:
            if self.winner() is None:
                shot = await self._choose("shoot", hunter, "You die. Whom do you shoot?", (NOBODY, *self.alive))
                if shot != NOBODY:
                    await self._tell(self.alive, f"{hunter} was the hunter and shot {shot}.")
                    await self._bury([shot])

    async def _discuss(self) -> None:
        for _ in range(self.discussion_rounds):
            for name in list(self.alive):
                others = [self.players[other] for other in self._others(name)]
                speech = await self.players[name].speak("Speak to the others: whom do you suspect, and why?", others)
                self._note("says", name, speech)

    async def _exile(self) -> None:
        """Everybody votes at once; a tie sends nobody away."""
        voters = list(self.alive)
        votes = await asyncio.gather(
            *(self.players[name].choose("Vote: who is sent away?", self._others(name)) for name in voters)
        )
        for name, vote in zip(voters, votes, strict=True):
            self._note("votes", name, vote)
        (first, most), *rest = Counter(votes).most_common()
        out = NOBODY if rest and rest[0][1] == most else first
        counted = ", ".join(f"{name} for {vote}" for name, vote in zip(voters, votes, strict=True))
        await self._tell(voters, f"Votes: {counted}. Sent away: {out}.")
        if out != NOBODY:
            await self._bury([out])

    def _most(self, votes: Sequence[str]) -> str:
        """The choice of most; chance decides between equals."""
        counts = Counter(votes)
        return self.rng.choice(sorted(name for name in counts if counts[name] == max(counts.values())))
