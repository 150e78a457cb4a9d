"""Commands on a finished run: its report, and a copy of its best model."""

from __future__ import annotations

import shutil
from pathlib import Path

from astune.app.console import Console
from astune.app.run import checkpoint_of, whole_model
from astune.engine.adapters import CONFIG_FILE, base_of, policies_in
from astune.runs import FREE_THERE, Checkpoint, RunDirectory, copy_folder, resolve_run, store_errors
from astune.runs.interval import rate_text
from astune.schema import RunStoreError


def show_report(run: str) -> int:
    from astune.cli._report import report_run

    report_run(RunDirectory.open(resolve_run(run, prefer="training")), Console())
    return 0


def write_report_page(run: str) -> int:
    from astune.cli._report_html import write_html

    written = write_html(RunDirectory.open(resolve_run(run, prefer="training")))
    Console().say(written)
    return 0


def clean_run(run: str, *, dry_run: bool) -> int:
    """Remove what only resuming a run needs, or say what would be removed."""
    directory, console = RunDirectory.open(resolve_run(run, prefer="training")), Console()
    removable = directory.removable()
    if not dry_run and removable:
        directory.clean()
    for path, size in removable.items():
        console.say(f"{size / 1e6:8,.0f} MB  {path}")
    total = f"{sum(removable.values()) / 1e6:,.0f} MB"
    if dry_run:
        summary = f"{total} would be removed, and the run could not be resumed"
    elif removable:
        summary = f"{total} removed; the run cannot be resumed"
    else:
        summary = f"nothing in {directory.path} is needed for resuming alone"
    console.say(summary)
    return 0


def export_model(run: str, to: Path, policy: str | None = None) -> int:
    """Copy the best model, or that of a checkpoint, into `to`, which appears only when it is whole; of several policies
    the one that is named."""
    checkpoint = checkpoint_of(run)
    source = whole_model(checkpoint) if policy is None else _folder_of(checkpoint, policy)
    to = to.expanduser()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RunStoreError(f"{to} exists already", hint="name a folder that does not exist yet")
    temporary = to.with_name(f".{to.name}.partial")
    try:
        with store_errors(f"copying {source} to {to}", if_full=FREE_THERE):
            shutil.rmtree(temporary, ignore_errors=True)  # of an export that was killed
            to.parent.mkdir(parents=True, exist_ok=True)
            if (source / CONFIG_FILE).is_file():
                _merge(source, temporary)
            else:
                copy_folder(source, temporary)
            if to.is_dir():
                to.rmdir()
            temporary.rename(to)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    measured = "" if checkpoint.score is None else f", held-out success {rate_text(checkpoint.score)}"
    what = "the model" if policy is None else f"the policy {policy}, as a whole model,"
    Console().say(f"{to}: {what} of step {checkpoint.step}{measured}")
    return 0


def _folder_of(checkpoint: Checkpoint, policy: str) -> Path:
    """The folder of a policy. Raises RunStoreError where the checkpoint has none of that name."""
    known = policies_in(checkpoint.model)
    if policy not in known:
        have = f"it has {', '.join(known)}" if known else "its model is whole: leave --policy out"
        raise RunStoreError(f"{checkpoint.path} has no policy {policy}", hint=have)
    return checkpoint.model / policy


def _merge(adapter: Path, to: Path) -> None:
    from astune.engine.model_files import resolve_model
    from astune.trainer.checkpoint import save_merged

    save_merged(resolve_model(base_of(adapter)), adapter, to)
