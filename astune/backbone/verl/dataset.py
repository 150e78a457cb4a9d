"""The tasks as verl's data set: in astune's order, so that a run takes the same tasks whatever trains it."""

from __future__ import annotations

from typing import Any

import orjson
import torch

from astune.backbone.cluster.reports import reports


class OrderedTasks(torch.utils.data.Dataset[dict[str, Any]]):
    """`data_files` is `training` or `validation`; a row is one group to run."""

    def __init__(self, data_files: Any, **_: Any) -> None:
        order = reports().work_order()
        self._groups = order.training if str(data_files) == "training" else order.validation

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> dict[str, Any]:
        group = self._groups[index]
        return {
            "astune_task": orjson.dumps(group.task).decode(),
            "astune_first_repeat": group.first_repeat,
            "raw_prompt": "",
            "data_source": "astune",
            "index": index,
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl's batches need one
        }
