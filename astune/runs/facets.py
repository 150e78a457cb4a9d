"""Counts of episodes by value, and the success of each task from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from astune.runs.episode_filter import EpisodeFilter
from astune.runs.episodes import EpisodeReader

_BINS = 12

_NAMED = ("split", "status", "error_type", "agent")
_MEASURED: dict[str, tuple[str, dict[str, None]]] = {
    "reward": ("reward", {"min_reward": None, "max_reward": None}),
    "n_tokens": ("n_tokens", {"min_tokens": None, "max_tokens": None}),
}
Bin = tuple[float, float, int]
Turned = Literal["solved", "broken"]
TaskSort = Literal["task", "change", "last"]


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """A task: its episodes and successes at each step, in order; attempts that failed are left out.

    0 of 4, then 3 of 4   has   first 0, last 0.75, and turned to solved: from less than half to half or more
    """

    task_id: str
    steps: list[tuple[int, int, int]]
    """step, episodes, successes"""

    @property
    def first(self) -> float:
        return self.steps[0][2] / self.steps[0][1]

    @property
    def last(self) -> float:
        return self.steps[-1][2] / self.steps[-1][1]

    @property
    def turned(self) -> Turned | None:
        if (self.first < 0.5) == (self.last < 0.5):
            return None
        return "solved" if self.first < 0.5 else "broken"


def facets(reader: EpisodeReader, wanted: EpisodeFilter) -> dict[str, Any]:
    """For each facet the values that there are and their counts, under all filters but the facet's own.

    {"status": [["success", 40], ["failed", 8]], ..., "reward": [[low, high, count], ...], "n_tokens": [...]}
    """
    named = {facet: _counts(reader, facet, wanted) for facet in _NAMED}
    return named | {facet: _histogram(reader, facet, wanted) for facet in _MEASURED}


def tasks(
    reader: EpisodeReader, wanted: EpisodeFilter, by: TaskSort, *, descending: bool, turned: Turned | None
) -> list[TaskHistory]:
    """The history of each task among the episodes that are wanted."""
    rows = reader.select(
        "task_id, step, COUNT(*), COALESCE(SUM(success), 0)",
        wanted,
        "AND status <> 'error' GROUP BY task_id, step ORDER BY task_id, step",
    )
    histories: dict[str, list[tuple[int, int, int]]] = {}
    for task_id, step, episodes, successes in rows:
        histories.setdefault(task_id, []).append((step, episodes, successes))
    found = [TaskHistory(task_id, steps) for task_id, steps in histories.items()]
    if turned is not None:
        found = [history for history in found if history.turned == turned]
    keys = {"change": lambda one: one.last - one.first, "last": lambda one: one.last}
    return sorted(found, key=keys[by], reverse=descending) if by in keys else found[:: -1 if descending else 1]


def _counts(reader: EpisodeReader, facet: str, wanted: EpisodeFilter) -> list[tuple[str, int]]:
    wanted = replace(wanted, **{facet: None})
    column, join = ("value", ", json_each(agents)") if facet == "agent" else (facet, "")
    tail = f"AND {column} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1"
    return reader.select(f"{column}, COUNT(*)", wanted, tail, join=join)


def _histogram(reader: EpisodeReader, facet: str, wanted: EpisodeFilter) -> list[Bin]:
    """Each value by itself where there are few, else bins of equal width.

    A bin ends at its smallest and largest values, so that a filter from one to the other finds what the bin counts.
    """
    column, without = _MEASURED[facet]
    wanted = replace(wanted, **without)
    values = reader.select(
        f"{column}, COUNT(*)", wanted, f"AND {column} IS NOT NULL GROUP BY 1 ORDER BY 1 LIMIT {_BINS + 1}"
    )
    if len(values) <= _BINS:
        return [(value, value, count) for value, count in values]
    [(low, high)] = reader.select(f"MIN({column}), MAX({column})", wanted)
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    if isinstance(low, int):
        width = -(-(high - low + 1) // _BINS)
        edges = [*range(low, high + 1, width)]
    else:
        width = (high - low) / _BINS
        edges = [low + width * number for number in range(_BINS)]
    found = _binned(reader, column, wanted, low, width)
    return [found.get(number, (at, at + width, 0)) for number, at in enumerate(edges)]


def _binned(reader: EpisodeReader, column: str, wanted: EpisodeFilter, low: float, width: float) -> dict[int, Bin]:
    """The bins that are not empty, by number."""
    # Numbers of ours, written as SQL can read them.
    number = f"MIN({_BINS - 1}, CAST(({column} - ({low!r})) / {width!r} AS INTEGER))"
    columns = f"{number}, MIN({column}), MAX({column}), COUNT(*)"
    rows = reader.select(columns, wanted, f"AND {column} IS NOT NULL GROUP BY 1")
    return {at: (least, most, count) for at, least, most, count in rows}
