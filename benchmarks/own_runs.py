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


def train(conf: Path, name: str, overrides: Sequence[str], *, command: str = "--conf") -> RunDirectory:
    """Start a run of its own process and wait for its end; its output goes to ours.

    `command` is what stands before the configuration: `sft` for supervised fine-tuning.

    Raises:
        SystemExit: the run failed.
    """
    words = [command, str(conf)]
    for override in [f"astune.record_dir={RECORD_DIR}", f"astune.experiment_name={name}", *overrides]:
        words += ["--set", override]
    if (status := astune(*words)) != 0:
        raise SystemExit(f"the run {name} ended with {status}")
    return RunDirectory.open(resolve_run(RECORD_DIR / name))


def astune(*words: str) -> int:
    """Run the command with its output to ours; returns its exit status."""
    print("$ astune " + " ".join(words), flush=True)
    return subprocess.run([Path(sys.executable).with_name("astune"), *words], cwd=ROOT, check=False).returncode


def resolved(conf: Path, overrides: Sequence[str] = ()) -> AstuneConfig:
    return load_config(conf, list(overrides))


def lines_of(run: RunDirectory, kind: str) -> list[MetricsLine]:
    return [line for line in run.metrics() if line.kind == kind]


def step_seconds(line: MetricsLine) -> float:
    """What one training step took: episodes, learning, and new weights for the engine; measurements are not in it."""
    return sum(line.metrics.get(f"time/{phase}_s", 0.0) for phase in ("rollout", "train", "sync"))
