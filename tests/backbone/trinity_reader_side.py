"""What Trinity's trainer reads as a step, of one that lost a group; runs in Trinity's environment.

On its input the names of the groups that are there, on its output those that were read, or why they were not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from trinity.common.experience import Experience

from astune.backbone.cluster.rows import quiet_row
from astune.backbone.trinity import samples
from astune.backbone.trinity.samples import experiences_of, group_info
from astune.schema import TrainerError


class Queue:
    """Stands for Trinity's."""

    def __init__(self, groups: list[str]) -> None:
        row = quiet_row(0, 0, dropped=False)
        self._there = [one for uid in groups for one in experiences_of([row, row], uid=uid)]

    async def read(self, batch_size: int) -> list[Experience]:
        taken, self._there = self._there[:batch_size], self._there[batch_size:]
        return taken


class Strategy(samples.WholeGroups):
    def __init__(self, reader: Queue) -> None:
        self._reader, self._groups = reader, 2

    def set_model_version_metric(self, exps: Any, metrics: Any) -> None: ...


try:
    batch, _, _ = asyncio.run(Strategy(Queue(json.load(sys.stdin))).sample(step=1))
    said = {"read": [group_info(one)["uid"] for one in batch]}
except TrainerError as refused:
    said = {"refused": str(refused)}
json.dump(said, sys.stdout)
