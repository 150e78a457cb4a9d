"""Games of several players in one environment, who move in turn; each state names the player.

    get_init_state()   the first player's view, and info {"player": "player 0", "roles": {"player 0": "Mafia", ...}}
    step(move)         the next player's view and info {"player": "player 3"}, or the end and info {"rewards": {...}}

A view is what the player has not read before. A player whose move is not accepted may be asked again. The workflow
`astune.workflow.turns->TurnGame` plays such games.
"""

from __future__ import annotations

import random
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from astune.env_service.base import Environment, EnvState, EnvStep, text_of
from astune.environments._own_tasks import SPLITS, split_and_index, task_ids
from astune.schema import EnvError, Message, Task

_chance = threading.Lock()
"""Games draw from the random generator of the whole process."""


class TurnBased(Environment):
    """A game in progress. A library's player is a number or a name; outside of it a player is `player 0`, `player 1`,
    ...

    Rewards are the library's, mostly 1 for a win, -1 for a loss and 0 for a draw. A game that raises on a player's move
    ends without a winner: what a model writes is no failure of the run.
    """

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        own = split_and_index(task.task_id)
        number = seed if own is None else SPLITS[own[0]][0] + own[1]
        self._random = random.Random(number).getstate()
        with self._own_chance():
            self.begin(number % 2**32)
        self._rewards: dict[str, float] | None = None

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Start the game."""

    @abstractmethod
    def view(self) -> tuple[str, str]:
        """The player whose turn it is, and what it has to read."""

    @abstractmethod
    def move(self, text: str) -> Mapping[str, float] | None:
        """Make the move of the player whose turn it is; returns the rewards if that ended the game."""

    @abstractmethod
    def roles(self) -> dict[str, str]:
        """Each player's role, by which it is rewarded and trained; its own name where the game has none."""

    def get_init_state(self) -> EnvState:
        with self._own_chance():
            player, text = self.view()
        return EnvState(_read(text), info={"player": player, "roles": self.roles()})

    def step(self, action: Message) -> EnvStep:
        failed: dict[str, str] = {}
        with self._own_chance():
            try:
                rewards = self.move(text_of(action))
                player, text = self.view() if rewards is None else ("", "")
            except Exception as cause:  # of the game's own code
                rewards = dict.fromkeys(self.roles(), 0.0)
                player, text, failed = "", "", {"failed": f"{type(cause).__name__}: {cause}"}
        if rewards is None:
            return EnvStep(_read(text), reward=0.0, is_terminated=False, info={"player": player})
        self._rewards = {name: float(reward) for name, reward in rewards.items()}
        return EnvStep([], reward=0.0, is_terminated=True, info={"rewards": self._rewards, **failed})

    def evaluate(self, sparse: bool = True) -> float:
        """The first player's reward, from 0 for -1 to 1 for 1."""
        if not self._rewards:
            return 0.0
        return min(1.0, max(0.0, (next(iter(self._rewards.values())) + 1) / 2))

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        cls.prepare()
        return task_ids(split, environment=cls.__name__)

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Give the game its own random generator: the same seed and moves are the same game."""
        with _chance:
            outside = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outside)


def player_name(number: object) -> str:
    """`player 0` of a library's 0 or player_0."""
    return f"player {str(number).removeprefix('player_')}"


def number_of_players(task: Task) -> int:
    """`metadata.players` of a task."""
    players = task.metadata["players"]
    if not isinstance(players, int) or players < 1:
        raise EnvError(f"task {task.task_id}: players is {players!r}", hint="give a whole number, such as 6")
    return players


def _read(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
