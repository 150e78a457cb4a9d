"""Frozen lakes from a seed: `python -m tutorial.example_frozen_lake.tasks --help`.

Maps come from gymnasium's generator. Each map is there once, and belongs to one split for ever: a hash of the map
decides, so that no held-out map is ever trained on, whatever the seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from astune.env_service.frozenlake import DEFAULT_MAX_TURNS, random_map, shortest_way
from astune.schema import Task, TaskReaderError
from astune.task_reader import TaskReaderBase

Split = Literal["train", "validation"]

QUERY = "Cross the frozen lake to the goal. A hole ends the game."
HELD_OUT_PART = 5
"""One map in five is held out."""

PATIENCE = 20_000
"""Draws without a new map after which there are taken to be no more."""


class FrozenLakeTaskReader(TaskReaderBase):
    """Makes the lakes when a run starts; `task_reader.params`: `training` and `validation`, how many, and `seed`."""

    def training_tasks(self) -> list[Task]:
        return self._make("train", "training", 500)

    def validation_tasks(self) -> list[Task]:
        return self._make("validation", "validation", 96)

    def _make(self, split: Split, count_key: str, default: int) -> list[Task]:
        params = self.config.params
        return make_tasks(split, int(params.get(count_key, default)), seed=int(params.get("seed", 0)))


def make_tasks(split: Split, number: int, *, seed: int = 0) -> list[Task]:
    """`number` different lakes that can be crossed within the turns that an episode has."""
    tasks: dict[str, Task] = {}
    last_found = 0
    for draw in itertools.count():
        if len(tasks) == number:
            break
        if draw - last_found > PATIENCE:
            raise TaskReaderError(f"only {len(tasks)} of {number} different lakes were found", hint="ask for fewer")
        lake_map = random_map(seed * 1_000_000 + draw)
        key = "\n".join(lake_map)
        way = shortest_way(lake_map)
        if key in tasks or split_of(lake_map) != split or way is None or len(way) > DEFAULT_MAX_TURNS:
            continue
        last_found = draw
        tasks[key] = Task(
            task_id=f"frozenlake-{split}-{seed}-{len(tasks):05d}",
            main_query=QUERY,
            env_type="frozenlake",
            metadata={"map": lake_map, "max_turns": DEFAULT_MAX_TURNS},
        )
    return list(tasks.values())


def split_of(lake_map: list[str]) -> Split:
    digest = hashlib.sha256("\n".join(lake_map).encode()).digest()
    return "validation" if digest[0] % HELD_OUT_PART == 0 else "train"


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
