"""benchmarks/results/redteam.md: each attack, where it reached its goal, and where it was tried and held."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = """# Attacks

Written by `make redteam`. Each attack first has to reach its goal in a naive harness of the tests, and is then tried
here. Of the trainer's own process, only text of models is tried: what an agent's code in it can do by nature is in
docs/en/security.md.
"""


@dataclass
class _Row:
    goal: str
    naive: str
    open: bool = False
    tried: list[str] = field(default_factory=list[str])
    held: list[str] = field(default_factory=list[str])


class Report:
    """What was played so far, by the attack's name."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def played(self, name: str, goal: str, naive: str, place: str) -> None:
        self._rows.setdefault(name, _Row(goal, naive)).tried.append(place)

    def is_open(self, name: str) -> bool:
        return self._rows[name].open

    def opened(self, name: str) -> None:
        """It reached its goal in the naive harness."""
        self._rows[name].open = True

    def held(self, name: str, place: str) -> None:
        self._rows[name].held.append(place)

    def write(self, to: Path) -> None:
        tried, held = Counter[str](), Counter[str]()
        for row in self._rows.values():
            tried[row.goal] += len(row.tried)
            held[row.goal] += len(row.held)
        tried_at, held_at = Counter[str](), Counter[str]()
        for row in self._rows.values():
            tried_at.update(row.tried)
            held_at.update(row.held)
        places = [f"| {place} | {tried_at[place]} | {held_at[place]} |" for place in sorted(tried_at)]
        goals = [f"| {goal} | {tried[goal]} | {held[goal]} |" for goal in sorted(tried)]
        rows = [
            f"| {name} | {row.goal} | {row.naive}: {'reached' if row.open else 'not reached'} "
            f"| {', '.join(row.tried)} | {len(row.held)} of {len(row.tried)} |"
            for name, row in self._rows.items()
        ]
        lines = [
            _HEAD,
            "| goal | tried | held |",
            "|---|---|---|",
            *goals,
            f"| all | {tried.total()} | {held.total()} |",
            "",
            "| place | tried | held |",
            "|---|---|---|",
            *places,
            "",
            "| attack | goal | naive harness | here | held |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
        to.write_text("\n".join(lines))
