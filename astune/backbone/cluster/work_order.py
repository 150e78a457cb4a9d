"""The work order of an engine's processes: the run server's job as they get it, over HTTP or on standard input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from astune.config.schema import AstuneConfig


class GroupToRun(BaseModel):
    """A task whose group of episodes is run; these are numbered from `first_repeat`."""

    task: dict[str, Any]
    first_repeat: int


class WorkOrder(BaseModel):
    """The groups of the steps to come, in their order, and those of a measurement; where checkpoints lie.

    `measured` is the last step whose weights the validation tasks were run with, -1 for none.
    """

    model_config = ConfigDict(frozen=True)
    config: AstuneConfig
    base_dir: Path | None
    model_folder: str
    training: list[GroupToRun]
    validation: list[GroupToRun]
    checkpoints: Path
    resume_from: str | None
    first_step: int
    measured: int
    measured_steps: list[int]

    @property
    def done(self) -> int:
        """The last step that an earlier process trained; 0 for none."""
        return self.first_step - 1
