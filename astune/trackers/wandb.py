"""Weights & Biases, by its own library: one run there for each run here, also across a resume."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Split
from astune.trackers.base import EndStatus, TrackedRun, Tracker, tagged

_EXIT_CODES: dict[EndStatus, int] = {"finished": 0, "failed": 1, "interrupted": 255}
"""255 is shown as killed."""


class WandbTracker(Tracker):
    """Shows a run at wandb.ai, or at the server that WANDB_BASE_URL names.

    Args:
        entity: user or team; None takes the account's default.
        group: the group that the run is shown in.
        tags: its tags.
        notes: a description.
        mode: `online`, `offline` (files in the run's folder, for `wandb sync`), `shared` or `disabled`; None takes
            WANDB_MODE, or `online`.
    """

    def __init__(
        self,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        mode: str | None = None,
    ) -> None:
        self._settings = {"entity": entity, "group": group, "tags": list(tags), "notes": notes, "mode": mode}
        self._run: Any = None

    def start(self, run: TrackedRun, config: AstuneConfig) -> str | None:
        wandb: Any = importlib.import_module("wandb")
        mode = self._settings["mode"] or wandb.setup().settings.mode
        if mode in ("online", "shared") and not wandb.login(prompt=False):
            raise PermissionError("there is no API key: run `wandb login`, set WANDB_API_KEY, or params.mode: offline")
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            allow_val_change=True,  # a run may resume with other settings
            dir=str(run.path),
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(silent=True, console="off"),
            **self._settings,
        )
        # A step of its own, since wandb's must never go back, as it does after a resume.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return f"offline, in {run.path / 'wandb'}" if self._run.offline else self._run.url

    def log(self, step: int, split: Split, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **tagged(split, metrics)})

    def finish(self, status: EndStatus) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])
