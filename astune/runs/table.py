"""A run's metrics as a table: one row per step and split, one column per metric, as rows, CSV or parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from astune.runs._files import write_atomic
from astune.runs.metrics import MetricsLine
from astune.schema import ConfigError, imported

Row = dict[str, float | int | str]
TableFormat = Literal["csv", "parquet"]
_FIRST = ("step", "split", "elapsed_s")


def rows_of(lines: Iterable[MetricsLine]) -> list[Row]:
    """Convert each line to a row with `step`, `split`, `elapsed_s` and its metrics by name."""
    return [{"step": line.step, "split": line.kind, "elapsed_s": line.elapsed_s, **line.metrics} for line in lines]


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the column names: `step`, `split`, `elapsed_s`, then every metric by name."""
    return [*_FIRST, *sorted({name for row in rows for name in row}.difference(_FIRST))]


def write_table(rows: Sequence[Row], path: Path, form: TableFormat) -> None:
    """Write the table atomically into a file.

    A metric that a row does not have is an empty field, or null in parquet; `nan` and `inf` were measured.

    Raises:
        ConfigError: parquet is requested, but pyarrow is not installed.
        RunStoreError: the file cannot be written.
    """
    write_atomic(path, _csv(rows) if form == "csv" else _parquet(rows))


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    pyarrow, parquet = (
        imported(name, needed_by="writing parquet", error=ConfigError, hint="pip install pyarrow, or use --to csv")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    kinds = {"step": pyarrow.int64(), "split": pyarrow.string()}
    columns = {
        name: pyarrow.array([row.get(name) for row in rows], kinds.get(name, pyarrow.float64()))
        for name in columns_of(rows)
    }
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()
