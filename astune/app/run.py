"""A run in the Python API: metrics as plain rows, episodes, best model. Reads the run's records."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from astune.config import AstuneConfig
from astune.config.saved import load_saved
from astune.engine.adapters import policies_in
from astune.runs import (
    RECORD_DIR,
    Checkpoint,
    Row,
    RunDirectory,
    RunStatus,
    checkpoint_around,
    columns_of,
    resolve_run,
    rows_of,
)
from astune.schema import ConfigError, Episode, RunStoreError, Split, imported


class Run:
    """A run, finished or still being written.

    Args:
        path: a run's folder, or an experiment's folder or name for its newest run; None is the newest run overall.

    Raises:
        RunStoreError: there is no such run.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self._directory = RunDirectory.open(resolve_run(None if path is None else Path(path), prefer="training"))

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._directory.path

    @property
    def status(self) -> RunStatus:
        """`running`, `finished`, `failed`, `interrupted` or `killed`."""
        return self._directory.info().status

    @cached_property
    def config(self) -> AstuneConfig:
        """The resolved configuration."""
        return load_saved(self._directory.config_path)

    def metrics(self, split: Split | None = None) -> list[Row]:
        """Return one row per step and split, with `step`, `split`, `elapsed_s` and every metric under its name.

        Args:
            split: `train` or `validation`; None returns both.

        Raises:
            ConfigError: there is no such split.
        """
        _require_split(split)
        return rows_of(line for line in self._directory.metrics() if split in (None, line.kind))

    def metrics_frame(self, split: Split | None = None) -> Any:
        """The rows of `metrics` as a `pandas.DataFrame`; a metric that a row does not have is NaN.

        Raises:
            ConfigError: pandas is not installed.
        """
        hint = "pip install pandas; Run.metrics() has the same rows as plain dictionaries"
        pandas = imported("pandas", needed_by="Run.metrics_frame", error=ConfigError, hint=hint)
        rows = self.metrics(split)
        return pandas.DataFrame(rows, columns=columns_of(rows))

    def episodes(self, *, step: int | None = None, split: Split | None = None) -> list[Episode]:
        """The recorded episodes, oldest first: of one step or of all, of one split or of both.

        Raises:
            ConfigError: there is no such split.
        """
        _require_split(split)
        with self._directory.episodes() as reader:
            return list(reader.episodes(step=step, split=split))

    @property
    def best_model(self) -> Path | None:
        """The folder of the best model, in Hugging Face format; None where the run saved none."""
        best = self._directory.checkpoints.best()
        return None if best is None else best.model

    @property
    def latest_model(self) -> Path | None:
        """The folder of the model of the newest checkpoint; None where the run saved none."""
        latest = self._directory.checkpoints.latest()
        return None if latest is None else latest.model

    def __repr__(self) -> str:
        steps = max((line.step for line in self._directory.metrics()), default=0)
        return f"Run({str(self.path)!r}, {self.status} after step {steps})"


def _require_split(split: str | None) -> None:
    if split not in (None, *get_args(Split)):
        raise ConfigError(
            f"there is no split {split!r}", hint="it is `train` or `validation`; without one, both are returned"
        )


def whole_model(checkpoint: Checkpoint) -> Path:
    """The folder of a checkpoint's model. Raises RunStoreError if the checkpoint is of several policies."""
    policies = policies_in(checkpoint.model)
    if policies:
        raise RunStoreError(
            f"{checkpoint.path} has the policies {', '.join(policies)}, but one model is needed",
            hint=f"`astune export RUN --policy {policies[0]} --to DIR` makes a model of one",
        )
    return checkpoint.model


def checkpoint_of(named: str | PathLike[str]) -> Checkpoint:
    """The checkpoint that a path is in, or the best one of the run that it names.

        RUN/checkpoints/step-000004          step 4
        RUN/checkpoints/step-000004/model    step 4
        RUN                                  the best step

    Raises:
        RunStoreError: there is none, or its files are not as they were written.
    """
    checkpoint = checkpoint_around(Path(named)) or checkpoint_around(RECORD_DIR / named)
    if checkpoint is None:
        return best_checkpoint(resolve_run(Path(named), prefer="model"))
    checkpoint.require_whole("model")
    return checkpoint


def best_checkpoint(run_path: Path) -> Checkpoint:
    """The run's best model. Raises RunStoreError if it has none, or its files are not as they were written."""
    run = RunDirectory.open(run_path)
    checkpoint = run.checkpoints.best()
    if checkpoint is None and run.info().kind == "debug":
        raise RunStoreError(
            f"{run_path} is a debug run, which trains no model", hint="name a run that trained, or its experiment"
        )
    if checkpoint is None:
        raise RunStoreError(
            f"the run {run_path} has no checkpoint", hint="a run saves one every trainer.save_freq steps and at its end"
        )
    checkpoint.require_whole("model")
    return checkpoint
