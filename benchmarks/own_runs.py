"""Runs of ASTuner as a user starts them, with the `astune` command, and the numbers that they left on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from astune.config import AstuneConfig, load_config
from astune.runs import MetricsLine, RunDirectory, resolve_run
from benchmarks.report import ROOT

RECORD_DIR = ROOT / "launcher_record" / "benchmarks"


def train(conf: Path, name: str, overrides: Sequence[str]) -> RunDirectory:
    """Start a run of its own process and wait for its end; its output goes to ours.

    Raises:
        SystemExit: the run failed.
    """
    command = [str(Path(sys.executable).with_name("astune")), "--conf", str(conf)]
    for override in [f"astune.record_dir={RECORD_DIR}", f"astune.experiment_name={name}", *overrides]:
        command += ["--set", override]
    print("$ astune " + " ".join(command[1:]), flush=True)
    ended = subprocess.run(command, cwd=ROOT, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"the run {name} ended with {ended.returncode}")
    return RunDirectory.open(resolve_run(RECORD_DIR / name))


def resolved(conf: Path, overrides: Sequence[str] = ()) -> AstuneConfig:
    return load_config(conf, list(overrides))


def lines_of(run: RunDirectory, kind: str) -> list[MetricsLine]:
    return [line for line in run.metrics() if line.kind == kind]


def step_seconds(line: MetricsLine) -> float:
    """What one training step took: episodes, learning, and new weights for the engine; measurements are not in it."""
    return sum(line.metrics.get(f"time/{phase}_s", 0.0) for phase in ("rollout", "train", "sync"))
