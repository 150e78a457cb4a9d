"""Averages over the episodes of one step, with what an interval of their success rate is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from astune.runs.interval import OfTasks, interval_of
from astune.schema import Split

SUMMARIES = """
    SELECT split, step, SUM(errors), 1.0 * SUM(rewards) / SUM(rewarded), 1.0 * SUM(sampled) / SUM(n),
           1.0 * SUM(turns) / SUM(n), COUNT(*), MAX(repeats), SUM(n), SUM(s), SUM(s * s), SUM(s * n), SUM(n * n)
    FROM (SELECT split, step, SUM(status = 'error') AS errors, SUM(reward) AS rewards, COUNT(reward) AS rewarded,
                 SUM(n_sampled) FILTER (WHERE status != 'error') AS sampled,
                 SUM(n_turns) FILTER (WHERE status != 'error') AS turns, MAX(repeat) + 1 AS repeats,
                 SUM(status != 'error') AS n, COALESCE(SUM(success), 0) AS s
          FROM episodes WHERE ?1 IS NULL OR split = ?1 GROUP BY split, step, task_id)
    GROUP BY split, step ORDER BY step, split"""
"""Sums over tasks, and over all tasks of a step."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Averages over the episodes of one step and split; errors are only counted.

    `effective` is the number of independent episodes that tell as much of the success rate: fewer than `episodes`
    where a task has several. `repeats` are the episodes that each task was to have, and `squares` is the sum over tasks
    of their successes squared.
    """

    split: Split
    step: int
    episodes: int
    errors: int
    tasks: int
    successes: int
    reward: float
    answer_tokens: float
    turns: float
    effective: float
    repeats: int
    squares: float

    @property
    def success_rate(self) -> float:
        return self.successes / self.episodes if self.episodes else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the success rate."""
        return interval_of(self.success_rate if self.episodes else 0.0, self.effective)

    def over_all(self, episodes: int) -> StepSummary:
        """Return the same over so many episodes, of which those that did not finish count as failed.

        4 tasks, 4 episodes each; 2 solved half of the time, of 2 none finished   ->   4 of 16, not 4 of 8
        """
        sums = OfTasks(episodes, self.successes, self.squares, self.repeats * self.successes, self.repeats * episodes)
        return replace(self, episodes=episodes, effective=sums.effective)


def summary_of(
    split: Split,
    step: int,
    errors: int,
    reward: float | None,
    answer_tokens: float | None,
    turns: float | None,
    n_tasks: int,
    repeats: int,
    *sums: int,
) -> StepSummary:
    """The summary of a row of `SUMMARIES`; `sums` are those of `OfTasks`."""
    means = (math.nan if value is None else float(value) for value in (reward, answer_tokens, turns))
    of_tasks = OfTasks(*sums)
    return StepSummary(
        split,
        step,
        of_tasks.episodes,
        errors,
        n_tasks,
        int(of_tasks.successes),
        *means,
        effective=of_tasks.effective,
        repeats=repeats,
        squares=of_tasks.ss,
    )
