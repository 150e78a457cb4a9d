"""A workflow of Trinity's that runs one group of episodes, as every backbone runs them.

Trinity calls it once for a task, however often the task is repeated: episodes are run, judged and compared here. An
episode that raises is retried here, and a group that cannot be completed is still an experience, so that Trinity
neither runs finished episodes again nor waits for ones that will not come.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import asyncio
from functools import cache

import orjson
from trinity.common.experience import Experience
from trinity.common.workflows.workflow import Workflow

from astune.backbone.cluster.groups import Groups
from astune.backbone.cluster.hooks import hook, hooks
from astune.backbone.cluster.reports import reports
from astune.backbone.trinity.engine import TrinityEngine
from astune.backbone.trinity.names import n_runners
from astune.backbone.trinity.reporting import reporting_failures
from astune.backbone.trinity.samples import experiences_of
from astune.schema import Split


@hooks
class GroupOfEpisodes(Workflow):
    """Implements Trinity's `Workflow`; `raw_task` is a row of the job."""

    can_repeat = True
    is_async = True

    @hook
    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None: ...

    @hook
    @reporting_failures
    async def run_async(self) -> list[Experience]:
        groups = await asyncio.to_thread(_groups)
        uid = f"{self.task.batch_id}/{self.task.task_id}"
        split: Split = "validation" if self.task.is_eval else "train"
        rows = await groups.run(
            TrinityEngine(self.model, max_model_len=groups.config.rollout.max_model_len),
            orjson.loads(self.task.raw_task["task"]),
            uid=uid,
            split=split,
            step=int(self.task.batch_id) if split == "train" else int(await self.model.model_version_async),
            first_repeat=int(self.task.raw_task["first_repeat"]),
        )
        return experiences_of(rows, uid=uid)


@cache
def _groups() -> Groups:
    """Parts of this process; the token of an experience that stands for a group is never read."""
    return Groups(token_id=0, n_processes=n_runners(reports().work_order().config))
