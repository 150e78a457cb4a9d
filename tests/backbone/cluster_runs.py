"""Training the calculator on a CPU with an engine on a local Ray: what the e2e tests of both engines have in common."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import fmean
from subprocess import Popen

import psutil
from astune_command import ROOT, start
from backbone_table import put, row_of

from astune.runs import RunDirectory, balance_of, resolve_run

CALCULATOR = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
STEPS = 6
SETTINGS = {
    "trainer.total_steps": STEPS,
    "trainer.tasks_per_step": 4,
    "rollout.num_repeat": 6,
    "trainer.optim.lr": "1e-4",
    "trainer.optim.warmup_steps": 0,
    "trainer.test_freq": 1000,
    "trainer.validation.max_tasks": 4,
    "trainer.save_freq": STEPS,
}
WORKER = "ray::WorkerDict"
"""The process that trains."""


def python_of(engine: str) -> Path:
    return ROOT / f".venv-{engine}" / "bin" / "python"


def begin(engine: str, folder: Path, *arguments: str, conf: Path = CALCULATOR, **variables: str) -> Popen[str]:
    settings = SETTINGS | {f"environments.{engine}": python_of(engine)}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = ("--conf", str(conf), "--backbone", engine, *words, *arguments)
    return start(folder, *command, together=True, **variables)


def run_of(folder: Path, experiment: str = "calculator") -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record" / experiment))


def metrics_of(run: RunDirectory, kind: str = "train") -> list[dict[str, float]]:
    return [line.metrics for line in run.metrics() if line.kind == kind]


def assert_learnt(run: RunDirectory, out: str) -> None:
    """It got better, with the weights that were trained, and every token is accounted for."""
    lines = metrics_of(run)
    rewards = [line["reward/mean"] for line in lines]
    assert run.info().status == "finished", out
    assert len(lines) == STEPS
    assert fmean(rewards[-2:]) > fmean(rewards[:2]), rewards
    assert sum("train/engine_correlation" in line for line in lines) >= STEPS // 2
    for metrics in lines:
        assert metrics.get("train/engine_correlation", 1.0) > 0.99
        assert metrics.get("train/versions_behind_max", 0) == 0
        assert balance_of(metrics).difference == 0
    newest = run.checkpoints.latest()
    assert newest is not None
    assert newest.step == STEPS
    assert (newest.model / "config.json").is_file()
    page = os.environ.get("ASTUNE_TABLE")  # `make e2e-*` names it
    if page:
        put(Path(page), row_of(run))


def kill_while_training(process: Popen[str], folder: Path) -> tuple[str, float]:
    """SIGKILL to the process that trains, in the first step: what was said, and seconds until the run's end."""
    give_up = time.monotonic() + 900
    while not _training(folder):
        assert time.monotonic() < give_up
        assert process.poll() is None
        time.sleep(1)
    own = psutil.Process(process.pid).children(recursive=True)
    worker = next(one for one in own if WORKER in " ".join(one.cmdline()))
    worker.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    out, _ = process.communicate(timeout=120)
    return out, time.monotonic() - killed


def _training(folder: Path) -> bool:
    """The held-out tasks are measured, and the first step runs."""
    try:
        return bool(metrics_of(run_of(folder), "validation"))
    except Exception:
        return False
