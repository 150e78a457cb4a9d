"""A run's metrics as a table: CSV, parquet, rows and a pandas frame."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest
from astune_command import astune

import astune as package
from astune.runs import RunDirectory
from astune.schema import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunDirectory.create(tmp_path / "launcher_record", "talk") as run, run.open_metrics() as metrics:
        metrics.append(0, "validation", {"reward/mean": 0.25})
        metrics.append(1, "train", {"train/lr": 1e-6, "reward/mean": math.nan, "balance/masked/a, b": 3})
        run.finish("finished")
        return run.path


@pytest.mark.slow
def test_the_table_in_csv_has_every_number_and_empty_fields_for_what_a_row_does_not_have(run, tmp_path):
    done = astune(tmp_path, "export-metrics", str(run), "--to", "csv", "--out", "table.csv")
    assert "table.csv: 2 rows" in done
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        held_out, trained = csv.DictReader(file)
    assert list(held_out) == ["step", "split", "elapsed_s", "balance/masked/a, b", "reward/mean", "train/lr"]
    assert (held_out["step"], held_out["split"], held_out["reward/mean"], held_out["train/lr"]) == (
        *("0", "validation", "0.25"),
        "",
    )
    assert (trained["reward/mean"], float(trained["train/lr"]), float(trained["balance/masked/a, b"])) == (
        *("nan", 1e-6),
        3.0,
    )


@pytest.mark.slow
def test_the_table_in_parquet_has_types(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    astune(tmp_path, "export-metrics", str(run.parent), "--to", "parquet")
    table = parquet.read_table(tmp_path / "metrics.parquet")
    assert [str(table.schema.field(name).type) for name in ("step", "split", "train/lr")] == [
        *("int64", "string"),
        "double",
    ]
    assert table.column("train/lr").to_pylist() == [None, 1e-6]
    assert math.isnan(table.column("reward/mean").to_pylist()[1])


@pytest.mark.slow
def test_what_cannot_be_exported_is_said_in_one_line(run, tmp_path):
    failed = astune(tmp_path, "export-metrics", str(run), "--to", "csv", "--out", str(run), status=1)
    assert "it is a folder" in failed
    with RunDirectory.create(tmp_path / "launcher_record", "empty") as empty:
        empty.finish("failed")
    failed = astune(tmp_path, "export-metrics", str(empty.path), "--to", "csv", status=1)
    assert "has no metrics yet" in failed
    assert "Traceback" not in failed


def test_a_frame_needs_pandas_and_says_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="needs pandas") as raised:
        package.Run(run).metrics_frame()
    assert "pip install pandas" in (raised.value.hint or "")


def test_a_frame_has_the_rows_of_the_run(run):
    pytest.importorskip("pandas")
    frame = package.Run(run).metrics_frame()
    assert list(frame.columns[:3]) == ["step", "split", "elapsed_s"]
    assert frame["reward/mean"][0] == 0.25
    assert list(package.Run(run).metrics_frame("train")["step"]) == [1]
