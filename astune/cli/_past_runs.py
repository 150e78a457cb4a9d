"""What is done with a run that is over: its report, and a copy of its best model."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from astune.runs import Checkpoint, RunDirectory, resolve_run
from astune.schema import RunStoreError


def show_report(run: str) -> int:
    from astune.cli._report import report_run

    report_run(RunDirectory.open(resolve_run(run)), Console())
    return 0


def export_model(run: str, to: Path) -> int:
    """Copy the best model into `to`, which appears only when it is whole."""
    checkpoint = best_checkpoint(resolve_run(run))
    to = to.expanduser()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RunStoreError(f"{to} exists already", hint="name a folder that does not exist yet")
    temporary = to.with_name(f".{to.name}.partial")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(checkpoint.model, temporary)
        if to.is_dir():
            to.rmdir()
        temporary.rename(to)
    except OSError as cause:
        raise RunStoreError(
            f"copying {checkpoint.model} to {to}: {cause}", hint="check its permissions and the space left"
        ) from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    measured = "" if checkpoint.score is None else f", held-out success {checkpoint.score:.2f}"
    Console().print(f"{to}: the model of step {checkpoint.step}{measured}", markup=False, soft_wrap=True)
    return 0


def best_checkpoint(run_path: Path) -> Checkpoint:
    """The run's best model.

    Raises:
        RunStoreError: it has none.
    """
    checkpoint = RunDirectory.open(run_path).checkpoints.best()
    if checkpoint is None:
        raise RunStoreError(
            f"the run {run_path} has no checkpoint", hint="a run saves one every trainer.save_freq steps and at its end"
        )
    return checkpoint
