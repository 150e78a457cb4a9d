"""Tasks from two data sets, one to train on and one held out, each in the hub's layout; no field need be a query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astune.config.schema import HuggingFaceReaderConfig, TaskReaderConfig
from astune.schema import Task
from astune.task_reader.huggingface import TaskReaderHuggingFace
from astune.task_reader.reader import TaskReaderBase


class TwoDatasets(TaskReaderBase):
    """Reads both as `task_reader.huggingface` does; a task's query is its row as JSON.

    Args:
        training: `dataset_path`, and where wanted `subset` and `split`, of the data set to train on.
        validation: the same of the one that is held out; None for none.
    """

    def __init__(
        self,
        config: TaskReaderConfig,
        *,
        base_dir: Path | None = None,
        training: Mapping[str, Any],
        validation: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config, base_dir=base_dir)
        self._training, self._validation = training, validation

    def training_tasks(self) -> list[Task]:
        return self._read(self._training)

    def validation_tasks(self) -> list[Task]:
        return [] if self._validation is None else self._read(self._validation)

    def _read(self, dataset: Mapping[str, Any]) -> list[Task]:
        named = HuggingFaceReaderConfig(
            dataset_path=dataset["dataset_path"],
            subset=dataset.get("subset"),
            training_split=dataset.get("split") or "train",
            query_field=None,
        )
        reader = TaskReaderHuggingFace(TaskReaderConfig(huggingface=named), base_dir=self.base_dir)
        reader.tell = self.tell
        return reader.training_tasks()
