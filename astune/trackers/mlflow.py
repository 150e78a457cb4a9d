"""MLflow, by its own library: one run there for each run here, also across a resume."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Mapping
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Split
from astune.trackers.base import EndStatus, TrackedRun, Tracker, tagged

_RUN = "astune.run"
"""The tag by which a resumed run is found."""
_STATES: dict[EndStatus, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_UNUSABLE = re.compile(r"[^\w\-. /]")
_AT_ONCE = 1000
"""Metrics that a server accepts in one request."""
_LONGEST = 500
"""Characters of a parameter's value."""


class MLflowTracker(Tracker):
    """Shows a run on an MLflow server, or in a database file.

    Args:
        tracking_uri: the server or file, such as `http://127.0.0.1:5000` or `sqlite:///mlflow.db`; None takes
            MLFLOW_TRACKING_URI, or MLflow's default.
        experiment: MLflow's experiment; None takes the project's name.
        tags: further tags of the run.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str | None = None, tags: Mapping[str, str] | None = None
    ) -> None:
        self._uri, self._experiment, self._tags = tracking_uri, experiment, dict(tags or {})
        self._client: Any = None
        self._metric: Any = None
        self._id = ""

    def start(self, run: TrackedRun, config: AstuneConfig) -> str:
        mlflow: Any = importlib.import_module("mlflow")
        entities = importlib.import_module("mlflow.entities")
        self._metric = entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri=self._uri)
        experiment = self._experiment_id(self._experiment or run.project)
        found = self._client.search_runs([experiment], filter_string=f"tags.`{_RUN}` = '{run.run_id}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {**self._tags, _RUN: run.run_id, "astune.path": str(run.path)}
            self._id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
            params = [entities.Param(name, value) for name, value in _flat(config.model_dump(mode="json"))]
            for first in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[first : first + 100])
        return f"run {self._id} of experiment {experiment} at {self._client.tracking_uri}"

    def log(self, step: int, split: Split, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        named = tagged(split, metrics).items()
        values = [self._metric(_UNUSABLE.sub("_", name), value, now, step) for name, value in named]
        for first in range(0, len(values), _AT_ONCE):
            self._client.log_batch(self._id, metrics=values[first : first + _AT_ONCE])

    def finish(self, status: EndStatus) -> None:
        self._client.set_terminated(self._id, _STATES[status])

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The configuration as MLflow's parameters: dotted names, values as text of limited length."""
    flat: list[tuple[str, str]] = []
    for name, value in values.items():
        path = _UNUSABLE.sub("_", f"{prefix}{name}")
        flat += _flat(value, f"{path}.") if isinstance(value, dict) and value else [(path, str(value)[:_LONGEST])]
    return flat
