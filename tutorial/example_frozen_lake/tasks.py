"""Frozen lakes from a seed: `python -m tutorial.example_frozen_lake.tasks --help`.

The goal of a held-out lake is four moves away, in two directions, and holes lie between: who heeds only where it is
meets one in at least three of four walks, and who heeds only what is safe wanders. Training lakes may be shorter, so
that a move is rewarded sooner. Each map is there once, and belongs to one split for ever: a hash of the map decides, so
that no held-out map is ever trained on, whatever the seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from astune import Task, TaskReaderBase, TaskReaderConfig, TaskReaderError
from astune.environments.frozenlake import DEFAULT_MAX_TURNS, MOVES, shortest_way, sides_to_goal
from tutorial.example_frozen_lake.rules import BEST_OF_ONE_LOOK, crosses
from tutorial.example_frozen_lake.rules import ONE_LOOK as RULES

Split = Literal["train", "validation"]
Sides = dict[str, int]

QUERY = "Cross the frozen lake to the goal. A hole ends the game."
SIZE = 5
FROZEN = 0.75
"""Chance of each other tile to be ice."""
WAY = 4
"""Moves from start to goal, unless `ways` says otherwise."""
ONE_LOOK = {2: 0.5, 3: 0.5, WAY: 0.25}
"""Limits by moves: lakes that a walker who heeds only the goal crosses more often, by either side, are left out."""
HELD_OUT_PART = 5
"""Number of maps of which one is held out."""

PATIENCE = 100_000
"""Draws without a new map after which there are taken to be no more."""

PREFERENCES: tuple[Callable[[Sides], list[str]], ...] = (
    list,
    lambda sides: [way for way, left in sides.items() if left == max(sides.values())],
    lambda sides: [way for way, left in sides.items() if left == min(sides.values())],
)
"""Among which ways a walker draws who heeds only the goal: all, the longer side's, the shorter side's."""


class FrozenLakeTaskReader(TaskReaderBase):
    """Make the lakes when a run starts.

    Held-out lakes say as `baseline` whether the best rule of one look crosses them.

    Args:
        training: how many to train on.
        validation: how many are held out.
        ways: moves from start to goal in training, 2 to 4, in turn; held-out lakes are of 4. `metadata['way']` has it,
            for `stratify_by`.
    """

    def __init__(
        self,
        config: TaskReaderConfig,
        *,
        base_dir: Path | None = None,
        training: int = 500,
        validation: int = 96,
        seed: int = 0,
        ways: Sequence[int] = (WAY,),
    ) -> None:
        super().__init__(config, base_dir=base_dir)
        self.training, self.validation, self.seed, self.ways = training, validation, seed, ways

    def training_tasks(self) -> list[Task]:
        return make_tasks("train", self.training, seed=self.seed, ways=self.ways)

    def validation_tasks(self) -> list[Task]:
        return make_tasks("validation", self.validation, seed=self.seed)


def make_tasks(split: Split, number: int, *, seed: int = 0, ways: Sequence[int] = (WAY,)) -> list[Task]:
    """Return `number` different lakes, each to be crossed in so many moves by one who heeds the goal and the holes.

    Raises:
        TaskReaderError: there are not so many, or a way is not between 2 and 4.
    """
    if not ways or not set(ways) <= ONE_LOOK.keys():
        raise TaskReaderError(f"ways are {[*ways]}", hint="name ways of 2, 3 or 4 moves, as in [2, 3, 4]")
    tasks: dict[str, Task] = {}
    last_found = 0
    for draw in itertools.count():
        if len(tasks) == number:
            break
        if draw - last_found > PATIENCE:
            raise TaskReaderError(f"only {len(tasks)} of {number} different lakes were found", hint="ask for fewer")
        way = ways[len(tasks) % len(ways)]
        lake_map = _drawn_map(random.Random(f"{seed}/{draw}"), way)
        key = "\n".join(lake_map)
        if key in tasks or split_of(lake_map) != split or len(shortest_way(lake_map) or []) != way:
            continue
        if any(chance_of_goal_only(lake_map, draws_from) > ONE_LOOK[way] for draws_from in PREFERENCES):
            continue
        last_found = draw
        task_id = f"frozenlake-{split}-{seed}-{len(tasks):05d}"
        metadata = {"map": lake_map, "max_turns": DEFAULT_MAX_TURNS, "way": way}
        tasks[key] = Task(task_id=task_id, main_query=QUERY, env_type="frozenlake", metadata=metadata)
    if split == "validation":
        for task in tasks.values():
            task.metadata["baseline"] = float(crosses(task, RULES[BEST_OF_ONE_LOOK]))
    return list(tasks.values())


def chance_of_goal_only(lake_map: list[str], draws_from: Callable[[Sides], list[str]]) -> float:
    """Return the chance to reach the goal by drawing each move from `draws_from(sides to the goal)`, blind to holes."""

    def chance(row: int, column: int) -> float:
        if lake_map[row][column] in "HG":
            return float(lake_map[row][column] == "G")
        ways = [MOVES[way] for way in draws_from(sides_to_goal(lake_map, (row, column)))]
        return sum(chance(row + down, column + right) for down, right in ways) / len(ways)

    return chance(*divmod("".join(lake_map).index("S"), SIZE))


def split_of(lake_map: list[str]) -> Split:
    digest = hashlib.sha256("\n".join(lake_map).encode()).digest()
    return "validation" if digest[0] % HELD_OUT_PART == 0 else "train"


def _drawn_map(draw: random.Random, way: int) -> list[str]:
    """A map whose start and goal lie `way` moves apart and in no line; it may have no way between them."""
    places = list(itertools.product(range(SIZE), repeat=2))
    start = draw.choice(places)
    apart = ((place, abs(place[0] - start[0]), abs(place[1] - start[1])) for place in places)
    goal = draw.choice([place for place, rows, columns in apart if rows + columns == way and rows and columns])
    tiles = {place: "F" if draw.random() < FROZEN else "H" for place in places} | {start: "S", goal: "G"}
    return ["".join(tiles[row, column] for column in range(SIZE)) for row in range(SIZE)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write frozen lakes, one JSON object a line.")
    parser.add_argument("--split", choices=["train", "validation"], default="train")
    parser.add_argument("--number", type=int, default=500, help="how many lakes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    arguments = parser.parse_args()
    tasks = make_tasks(arguments.split, arguments.number, seed=arguments.seed)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows = ({name: value for name, value in asdict(task).items() if value} for task in tasks)
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    arguments.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
