"""`make bench-gpu` as far as it goes without a GPU: its rows, their part of the limit, and parts that end early."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_gpu, report
from benchmarks.bench_gpu import MARK, of_limit, rows_of, table


def test_a_speed_is_a_part_of_the_limit_that_bounds_it() -> None:
    limit = {"gb_per_s": 4000.0, "tflops": 800.0}
    assert of_limit({"tokens_per_s": 1000.0, "gb_per_token": 1.2}, limit) == "0.30"
    assert of_limit({"tokens_per_s": 50_000.0, "tflop_per_token": 0.004}, limit) == "0.25"
    assert of_limit({"tokens_per_s": 1000.0, "gb_per_token": 1.2}, None) == ""


@pytest.mark.slow
def test_the_limits_are_measured_in_a_process_of_their_own() -> None:
    [found] = rows_of("-", "limits", "cpu", 300)
    assert found["gb_per_s"] > 0
    assert found["tflops"] > 0
    assert table([found]).endswith(" |  |  |  |")


def test_a_part_that_ends_early_leaves_what_it_measured_and_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        out = options["stdout"]
        shape, part = command[-2:]
        found = {"shape": shape, "part": part, "measured": "1 request", "tokens_per_s": 10.0, "memory_gib": 1.5}
        print(MARK + json.dumps(found), file=out)
        if shape == "8B":
            raise subprocess.TimeoutExpired(command, 5)
        if part == "training":
            print("OutOfMemoryError", file=out)
        return subprocess.CompletedProcess(command, int(part == "training"))

    monkeypatch.setattr(bench_gpu.subprocess, "run", run)
    monkeypatch.setattr(bench_gpu, "machine", lambda: {"commit": "0"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for module in (bench_gpu, report):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert bench_gpu.measure(["0.6B"], ["sampling"], 5)
    assert not bench_gpu.measure(["8B"], ["sampling"], 5)
    assert not bench_gpu.measure(["0.6B"], ["training"], 5)
    text = (tmp_path / "gpu.md").read_text()
    for line in (
        "| 0.6B | sampling | 1 request | 10 |  | 1.5 |",
        "| 8B | sampling | 1 request | 10 |  | 1.5 |",
        "| 8B | sampling | ended after 5 s: ",
        "| 0.6B | training | failed with status 1: OutOfMemoryError |",
    ):
        assert line in text
