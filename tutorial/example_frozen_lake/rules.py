"""Success rates of simple rules on the same lakes.

A trained walker has to be read beside them. The rules of one look read either where the goal is or what is safe; the
one of two looks reads both, which is what there is to learn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from astune import Task
from astune.environments.frozenlake import FrozenLake

Rule = Callable[[list[tuple[int, str]], list[str]], str]
"""Choose a move, given the goal's (steps, direction) and the safe directions, as they are listed."""

BEST_OF_ONE_LOOK = "down where it is safe, else right, left, up"
ONE_LOOK: dict[str, Rule] = {
    "the first word behind Safe": lambda _goal, safe: safe[0],
    "the first word behind Goal": lambda goal, _safe: goal[0][1],
    "the goal's longer side": lambda goal, _safe: max(goal)[1],
    BEST_OF_ONE_LOOK: lambda _goal, safe: min(safe, key=["down", "right", "left", "up"].index),
}
TWO_LOOKS: dict[str, Rule] = {
    "the first word behind Goal that is safe, else the first safe one": lambda goal, safe: next(
        (way for _, way in goal if way in safe), safe[0]
    )
}


def part_crossed(tasks: Sequence[Task], rule: Rule) -> float:
    """Return the part of the lakes that a walker by this rule crosses."""
    return sum(crosses(task, rule) for task in tasks) / len(tasks)


def crosses(task: Task, rule: Rule) -> bool:
    """Whether a walker by this rule reaches the goal."""
    lake = FrozenLake(task, seed=0)
    state = lake.get_init_state().state
    while state:
        goal, safe = re.findall(r"(?:Goal|Safe): ([^.]*)\.", str(state[-1]["content"]))
        sides = [(int(steps), way) for steps, way in re.findall(r"(\d+) (\w+)", goal)]
        state = lake.step({"role": "assistant", "content": rule(sides, safe.split(", "))}).state
    lake.close()
    return lake.evaluate() == 1.0
