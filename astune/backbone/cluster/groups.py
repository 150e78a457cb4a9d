"""Groups of episodes on a cluster, run as every backbone runs them, and reported to the run server.

A group is reported before the engine gets its rows, so what is trained is always recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from astune.backbone.cluster.engine import BorrowedEngine
from astune.backbone.cluster.handed_over import handed_over
from astune.backbone.cluster.messages import GroupFinished, RunFailed
from astune.backbone.cluster.reports import ReportingObserver, reports
from astune.backbone.cluster.rows import Row, quiet_row, rows_of
from astune.backbone.parts import load_parts
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup, Split, Task
from astune.trainer.batch import FOUND_IN_BATCH, batch_of, drop_without_variance


class Groups:
    """Shared resources of a process for all groups, created once.

    Args:
        token_id: of rows that stand for a group; one that the engine can read.
        n_processes: that share the places for episodes, `rollout.max_env_worker`.
        servers_rest: whether they sample nothing while weights are trained.
    """

    def __init__(self, *, token_id: int, n_processes: int, servers_rest: bool = False) -> None:
        self._reports = reports()
        order = self._reports.work_order()
        config = with_share(order.config, n_processes)
        self.config = _patient(config) if servers_rest and config.trainer.max_staleness else config
        self._parts = load_parts(self.config, order.base_dir, with_tasks=False, workers_connect_here=False)
        self._workflow = handed_over(self._parts.workflow, self._reports)
        self._renderer = load_renderer(Path(order.model_folder), self.config.model.path)
        self._token_id = token_id
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="astune-reports")

    async def run(
        self, engine: BorrowedEngine, task: Mapping[str, Any], *, uid: str, split: Split, step: int, first_repeat: int
    ) -> list[Row]:
        """The rows of a group; at least one, since engines wait for each group."""
        config, parts = self.config, self._parts
        observer = ReportingObserver(self._reports, split, self._executor)
        pool = RolloutPool(engine, self._renderer, self._workflow, parts.judge, config, observer)
        [group] = await pool.run_groups(
            [Task(**task)],
            step=step,
            split=split,
            first_repeat=first_repeat,
        )
        rows = self._rows(group, step) if split == "train" else [self._standing(step)]
        await observer.delivered()
        finished = GroupFinished(
            uid=uid,
            split=split,
            task_id=group.task.task_id,
            episodes=[episode.episode_id for episode in group.episodes],
            failed=[episode.episode_id for episode in group.failed_attempts],
            dropped=None if group.dropped in FOUND_IN_BATCH else group.dropped,  # the ledger finds out as well
            stats=engine.stats(),
        )
        await asyncio.to_thread(self._reports.send, finished)
        return rows

    async def failed_by(self, error: Exception) -> None:
        """Report why a group could not be run, which ends the run: failures of agents are no such errors."""
        await asyncio.to_thread(self._reports.send, RunFailed(error=f"{type(error).__name__}: {error}"))

    def _rows(self, group: EpisodeGroup, step: int) -> list[Row]:
        """A that stands for it, of a group that teaches nothing or could not be completed."""
        drop_without_variance([group], self._parts.algorithm)
        batch = batch_of(step, [group], self._parts.algorithm, self.config.trainer.samples)
        if not batch.groups:
            return [self._standing(step, dropped=not batch.flat)]
        return rows_of(group, batch.advantages[0], self._parts.algorithm) or [self._standing(step)]

    def _standing(self, step: int, *, dropped: bool = False) -> Row:
        return quiet_row(self._token_id, max(0, step - 1), dropped=dropped)


def with_share(config: AstuneConfig, n_processes: int) -> AstuneConfig:
    """Return the configuration with one process's share of concurrent episodes."""
    places = max(1, config.rollout.max_env_worker // n_processes)
    return changed(config, rollout={"max_env_worker": places})


def _patient(config: AstuneConfig) -> AstuneConfig:
    """Episodes that are run ahead wait while the servers rest, in each of these steps as long as a step may take."""
    rollout = config.rollout
    rests_s = rollout.step_timeout_s * (config.trainer.max_staleness + 1)
    limits = ("call_timeout_s", "episode_timeout_s", "step_timeout_s")
    return changed(config, rollout={name: getattr(rollout, name) + rests_s for name in limits})
