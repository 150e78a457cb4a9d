"""`astune export-metrics`: a run's metrics as a table in a file."""

from __future__ import annotations

from pathlib import Path

from astune.app.console import Console
from astune.runs import RunDirectory, TableFormat, resolve_run, rows_of, write_table
from astune.schema import RunStoreError


def export_metrics(run: str, form: TableFormat, out: Path | None) -> int:
    """Write all lines of a run's metrics into `out`, by default `metrics.csv` or `metrics.parquet` in the working
    directory."""
    directory = RunDirectory.open(resolve_run(run, prefer="training"))
    rows = rows_of(directory.metrics())
    if not rows:
        raise RunStoreError(
            f"the run {directory.path} has no metrics yet", hint="they are written at the end of its first step"
        )
    path = (out or Path(f"metrics.{form}")).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise RunStoreError(
            f"{path} cannot be written: it is a folder, or the folder around it is missing",
            hint=f"name a file in a folder that exists, say --out metrics.{form}",
        )
    write_table(rows, path, form)
    written = f"{path}: {len(rows)} rows of {directory.path}"
    Console().say(written)
    return 0
