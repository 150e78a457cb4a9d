"""SwanLab, by its own library: one experiment there for each run here, online also across a resume."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Split
from astune.trackers.base import EndStatus, TrackedRun, Tracker, tagged

_STATES: dict[EndStatus, str] = {"finished": "success", "failed": "crashed", "interrupted": "aborted"}


class SwanLabTracker(Tracker):
    """Shows a run at swanlab.cn, or at the server that the library is set to.

    Args:
        workspace: user or organisation; None takes the account's default.
        group: the group that the run is shown in.
        tags: its tags.
        description: a description.
        mode: `online`, `local` (for `swanlab watch`), `offline` (for `swanlab sync`) or `disabled`; None takes
            SWANLAB_MODE, or `online`. The files of the others are in the run's folder.
    """

    def __init__(
        self,
        workspace: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        description: str | None = None,
        mode: str | None = None,
    ) -> None:
        given = {"workspace": workspace, "group": group, "tags": list(tags), "description": description, "mode": mode}
        self._settings = {name: value for name, value in given.items() if value}
        self._swanlab: Any = None

    def start(self, run: TrackedRun, config: AstuneConfig) -> str | None:
        swanlab: Any = importlib.import_module("swanlab")
        folder = run.path / "swanlab"
        settings = swanlab.Settings(interactive=False, terminal={"proxy_type": "none"})
        started = swanlab.init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow",
            log_dir=str(folder),
            config=config.model_dump(mode="json"),
            settings=settings,
            **self._settings,
        )
        self._swanlab = swanlab
        try:
            return started.url
        except (RuntimeError, ValueError):  # what it raises where the mode is not online
            return f"not online, in {folder}"

    def log(self, step: int, split: Split, metrics: Mapping[str, float]) -> None:
        self._swanlab.log(tagged(split, metrics), step=step)

    def finish(self, status: EndStatus) -> None:
        error = None if status == "finished" else f"the run {status}"
        self._swanlab.finish(state=_STATES[status], error=error)
