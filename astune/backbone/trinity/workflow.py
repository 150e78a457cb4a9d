"""A workflow of Trinity's that runs one group of episodes, as every backbone runs them.

Trinity calls it once for a task, however often the task is repeated: episodes are run, judged and compared here.
Everything that happened is told to the run's keeper before Trinity gets the timelines, so what is trained is always
recorded. An episode that raises is begun again here, and a group that cannot be completed is still an experience, so
that Trinity neither runs finished episodes again nor waits for ones that will not come.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import cache
from pathlib import Path

import orjson
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import Workflow

from astune.backbone.cluster.reports import ReportingObserver, Reports, reports
from astune.backbone.cluster.rows import Row, quiet_row, rows_of
from astune.backbone.parts import UserParts, load_parts
from astune.backbone.trinity.engine import TrinityEngine
from astune.backbone.trinity.samples import experiences_of
from astune.config.schema import AstuneConfig
from astune.context_tracker import Renderer, load_renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup, Split, Task
from astune.trainer.advantages import advantages_of, teaches_nothing
from astune.trainer.local import NO_VARIANCE

_TOKEN = 0
"""Of an experience that stands for a group; nothing reads it."""


class GroupOfEpisodes(Workflow):
    """Implements Trinity's `Workflow`; `raw_task` is a row of the job."""

    can_repeat = True
    is_async = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None: ...

    async def run_async(self) -> list[Experience]:
        try:
            return await self._run()
        except Exception as error:
            await asyncio.to_thread(reports().tell, "failed", error=f"{type(error).__name__}: {error}")
            raise

    async def _run(self) -> list[Experience]:
        here = await asyncio.to_thread(_here)
        uid = f"{self.task.batch_id}/{self.task.task_id}"
        split: Split = "validation" if self.task.is_eval else "train"
        engine = TrinityEngine(self.model, max_model_len=here.config.rollout.max_model_len)
        group = await self._episodes(here, engine, split)
        rows = _rows(group, here.config) if split == "train" else [quiet_row(_TOKEN, 0)]
        await asyncio.to_thread(
            here.reports.tell,
            "group",
            uid=uid,
            split=split,
            task_id=group.task.task_id,
            episodes=[episode.episode_id for episode in group.episodes],
            failed=[episode.episode_id for episode in group.failed_attempts],
            dropped=group.dropped,
            stats=asdict(engine.stats()),
        )
        return experiences_of(rows, uid=uid)

    async def _episodes(self, here: _Here, engine: TrinityEngine, split: Split) -> EpisodeGroup:
        config, training = here.config, split == "train"
        pool = RolloutPool(
            engine, here.renderer, here.parts.workflow, here.parts.judge, config, ReportingObserver(here.reports, split)
        )
        step = int(self.task.batch_id) if training else int(await self.model.model_version_async)
        [group] = await pool.run_groups(
            [Task(**orjson.loads(self.task.raw_task["task"]))],
            step=step,
            split=split,
            num_repeat=config.rollout.num_repeat if training else config.trainer.validation.num_repeat,
            temperature=config.rollout.temperature if training else config.validation_temperature,
            first_repeat=int(self.task.raw_task["first_repeat"]),
        )
        return group


class _Here:
    """What a process needs for any group, made once."""

    def __init__(self) -> None:
        self.reports: Reports = reports()
        job = self.reports.job()
        self.config = AstuneConfig.model_validate(job["config"])
        base_dir = Path(job["base_dir"]) if job["base_dir"] is not None else None
        self.parts: UserParts = load_parts(self.config, base_dir, with_tasks=False)
        self.renderer: Renderer = load_renderer(Path(job["model_folder"]), self.config.model.path)


_here = cache(_Here)


def _rows(group: EpisodeGroup, config: AstuneConfig) -> list[Row]:
    """One that stands for it, of a group that teaches nothing or could not be completed: Trinity waits for each."""
    if group.dropped is not None:
        return [quiet_row(_TOKEN, 0, dropped=True)]
    [advantages] = advantages_of([group], normalise=config.trainer.loss.normalise_advantages)
    if teaches_nothing(advantages):
        group.dropped = NO_VARIANCE
        return [quiet_row(_TOKEN, 0)]
    return rows_of(group, advantages, config.trainer.loss.token_weights) or [quiet_row(_TOKEN, 0)]
