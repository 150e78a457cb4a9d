"""Frozen Lake in text: gymnasium's `FrozenLake-v1` with words for actions and for what the agent sees.

The rules are gymnasium's own code; this file only translates. A task's metadata holds `map` (rows of S, F, H, G, as
gymnasium writes them; S and G may be anywhere) and may hold `is_slippery` (default false) and `max_turns` (default 6).
One message is one move:

    right                      -> where the goal is from there, and which ways are safe
    Hmm, down, no: left        -> the last direction word counts
    anything without one       -> the end, without success

Each observation lists the safe directions, since a small model cannot read a grid; anything further away has to be
explored. Directions are listed in an order drawn from the map and the position, so that no list position is always
right. The sparse evaluation is 1 at the goal and else 0; the dense one adds half of the covered fraction of the path.
"""

from __future__ import annotations

import random
import re
from collections import deque
from typing import Any, ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep, opening, text_of
from astune.schema import EnvError, Message, Task, imported, install_extra

SYSTEM = "You walk on a frozen lake to its goal and step into no hole. Answer with one word: left, down, right or up."
DIRECTIONS = ("left", "down", "right", "up")
"""Directions in the order of gymnasium's actions 0 to 3."""

MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
DEFAULT_MAX_TURNS = 6

_TILES = "SFHG"
_DIRECTION = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b", re.IGNORECASE)


class FrozenLake(Environment):
    quick: ClassVar[bool] = True

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self._map = _checked_map(task)
        self._max_turns = int(task.metadata.get("max_turns", DEFAULT_MAX_TURNS))
        extra = install_extra("frozenlake")
        gymnasium = imported("gymnasium", needed_by="the frozen lake", error=EnvError, hint=extra)
        slippery = bool(task.metadata.get("is_slippery", False))
        self._lake: Any = gymnasium.make("FrozenLake-v1", desc=self._map, is_slippery=slippery)
        self._position = _start(self._map)
        self._turns = 0
        self._reached = False
        self._visited = {self._position}

    def get_init_state(self) -> EnvState:
        self._position, _ = self._lake.reset(seed=self.seed)
        intro = list(self.task.init_messages) or opening(SYSTEM, self.task.main_query)
        return EnvState(state=_with_observation(intro, self._observation()), info={"position": self._position})

    def step(self, action: Message) -> EnvStep:
        named = _DIRECTION.findall(text_of(action))
        if not named:
            return EnvStep([], reward=0.0, is_terminated=True, info={"stray": True})
        self._turns += 1
        position, reward, terminated, _, _ = self._lake.step(DIRECTIONS.index(named[-1].lower()))
        self._position = int(position)
        self._reached = self._reached or float(reward) > 0
        self._visited.add(self._position)
        over = bool(terminated) or self._turns >= self._max_turns
        state: list[Message] = [] if over else [{"role": "user", "content": self._observation()}]
        return EnvStep(state, reward=float(reward), is_terminated=over, info={"position": self._position})

    def evaluate(self, sparse: bool = True) -> float:
        if self._reached or sparse:
            return float(self._reached)
        whole = shortest_way(self._map)
        if whole is None:
            return 0.0
        left = min(len(way) for position in self._visited if (way := shortest_way(self._map, position)) is not None)
        return 0.5 * (1 - left / len(whole))

    def get_info(self) -> str:
        row, column = divmod(self._position, len(self._map[0]))
        return "\n".join([*self._map, f"at row {row + 1}, column {column + 1} after {self._turns} turns"])

    def close(self) -> None:
        self._lake.close()

    def _observation(self) -> str:
        return observation(self._map, self._position)


def observation(lake_map: list[str], position: int) -> str:
    """Return what the agent reads at `position` (gymnasium's number: row * columns + column).

    `Goal: 3 right, 2 down. Safe: down, up, right.` The order within each list is drawn from the map and the position.
    """
    draw = random.Random(f"{lake_map}/{position}")
    here = divmod(position, len(lake_map[0]))
    goal = [f"{left} {direction}" for direction, left in sides_to_goal(lake_map, here).items()]
    safe = [direction for direction in DIRECTIONS if _tile(lake_map, *here, direction) in "SFG"]
    draw.shuffle(goal)
    draw.shuffle(safe)
    return f"Goal: {', '.join(goal)}. Safe: {', '.join(safe)}."


def sides_to_goal(lake_map: list[str], here: tuple[int, int]) -> dict[str, int]:
    """Return the directions in which the goal lies from `here` (row, column), with the steps in each."""
    goal = divmod("".join(lake_map).index("G"), len(lake_map[0]))
    down, right = goal[0] - here[0], goal[1] - here[1]
    steps = {"down": down, "up": -down, "right": right, "left": -right}
    return {direction: left for direction, left in steps.items() if left > 0}


def shortest_way(lake_map: list[str], position: int | None = None) -> list[str] | None:
    """Return the directions of a shortest path from `position` (default: S) to G that avoids holes; None if there is
    none."""
    start = divmod(_start(lake_map) if position is None else position, len(lake_map[0]))
    if lake_map[start[0]][start[1]] == "H":
        return None
    ways: dict[tuple[int, int], list[str]] = {start: []}
    frontier = deque([start])
    while frontier:
        here = frontier.popleft()
        for direction, (down, right) in MOVES.items():
            there = (here[0] + down, here[1] + right)
            if there in ways or not (0 <= there[0] < len(lake_map) and 0 <= there[1] < len(lake_map[0])):
                continue
            tile = lake_map[there[0]][there[1]]
            if tile == "H":
                continue
            ways[there] = [*ways[here], direction]
            if tile == "G":
                return ways[there]
            frontier.append(there)
    return None


def _start(lake_map: list[str]) -> int:
    return "".join(lake_map).index("S")


def _tile(lake_map: list[str], row: int, column: int, direction: str) -> str:
    """Return the tile one step away; # is the shore."""
    down, right = MOVES[direction]
    row, column = row + down, column + right
    return lake_map[row][column] if 0 <= row < len(lake_map) and 0 <= column < len(lake_map[0]) else "#"


def _with_observation(messages: list[Message], observed: str) -> list[Message]:
    """Append the first observation to the last opening message, so that user and assistant still alternate."""
    *earlier, last = messages
    return [*earlier, {**last, "content": f"{text_of(last)}\n{observed}".strip()}]


def _checked_map(task: Task) -> list[str]:
    lake_map = task.metadata.get("map")
    rows: list[str] = lake_map if isinstance(lake_map, list) else []
    square = bool(rows) and all(isinstance(row, str) and len(row) == len(rows[0]) > 0 for row in rows)
    tiles = "".join(rows) if square else ""
    if not square or set(tiles) - set(_TILES) or tiles.count("S") != 1 or tiles.count("G") != 1:
        raise EnvError(
            f"task {task.task_id} has no usable metadata 'map': {lake_map!r}",
            hint="give rows of one length made of F, H, one S and one G: ['SFFF', 'FHFH', 'FFFH', 'HFFG']",
        )
    return rows
