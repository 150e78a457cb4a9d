"""Filter and order of episodes as SQL: callers give values, never parts of a statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from astune.schema import EpisodeStatus, Split

SortKey = Literal[
    "seq",
    "step",
    "task",
    "reward",
    "success",
    "status",
    "error_type",
    "agent",
    "seconds",
    "n_tokens",
    "n_sampled",
    "n_trained",
    "n_turns",
    "branches",
]
"""Sort key; `agent` sorts by the agent that spoke first."""
_SORTED_BY = {
    "task": "task_id",
    "agent": "json_extract(agents, '$[0]')",
    "branches": "n_branches",
    "n_trained": (
        "iif(split = 'train' AND status <> 'error' AND not_trained IS NULL AND advantages IS NOT NULL, n_trained, 0)"
    ),
}
"""SQL of sort keys that are not plain columns; see `EpisodeRow.untrained` for when nothing was trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Conditions on an episode; None is no condition. Bounds are inclusive.

    `task` is a part of the task's id, in upper or lower case; `agent` one of its agents; `seqs` restricts the search to
    these episodes.
    """

    split: Split | None = None
    step: int | None = None
    task_id: str | None = None
    task: str | None = None
    status: EpisodeStatus | None = None
    error_type: str | None = None
    agent: str | None = None
    success: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    min_branches: int | None = None
    seqs: Sequence[int] | None = None

    def where(self) -> tuple[str, list[object]]:
        """Return a condition over the table `episodes`, and its values."""
        conditions = {
            "split = ?": self.split,
            "step = ?": self.step,
            "task_id = ?": self.task_id,
            "instr(folded(task_id), ?) > 0": None if self.task is None else self.task.casefold(),
            "status = ?": self.status,
            "error_type = ?": self.error_type,
            "EXISTS (SELECT 1 FROM json_each(agents) WHERE value = ?)": self.agent,
            "success = ?": self.success,
            "reward >= ?": self.min_reward,
            "reward <= ?": self.max_reward,
            "n_tokens >= ?": self.min_tokens,
            "n_tokens <= ?": self.max_tokens,
            "n_branches >= ?": self.min_branches,
            "seq IN (SELECT value FROM json_each(?))": None if self.seqs is None else orjson.dumps(self.seqs).decode(),
        }
        given = {condition: value for condition, value in conditions.items() if value is not None}
        return " AND ".join(given) or "1", list(given.values())


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """Sort order by one column, nulls last; ties in order of recording.

    The order of recording is the table's own, in which a page is found without sorting everything.
    """

    by: SortKey = "seq"
    descending: bool = False

    def clause(self) -> str:
        column, direction = _SORTED_BY.get(self.by, self.by), "DESC" if self.descending else "ASC"
        return f"seq {direction}" if self.by == "seq" else f"{column} IS NULL, {column} {direction}, seq"


EVERY_EPISODE = EpisodeFilter()
AS_RECORDED = EpisodeOrder()
