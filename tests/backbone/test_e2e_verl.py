"""`make e2e-verl`: the calculator is trained on a CPU by real verl: FSDP2, vLLM and its weight sync, on a local Ray.

It gets better; the servers' probabilities stay those of the trainer; weights that do not arrive are found out; a killed
worker ends the run with its name.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from statistics import fmean
from subprocess import Popen

import psutil
import pytest
from astune_command import ROOT, start

from astune.runs import RunDirectory, balance_of, resolve_run

PYTHON = ROOT / ".venv-verl" / "bin" / "python"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON.exists(), reason="verl is not in .venv-verl: make env-verl"),
]
CALCULATOR = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
STEPS = 6
SETTINGS = {
    "environments.verl": PYTHON,
    "trainer.total_steps": STEPS,
    "trainer.tasks_per_step": 4,
    "rollout.num_repeat": 6,
    "trainer.optim.lr": "1e-4",
    "trainer.optim.warmup_steps": 0,
    "trainer.test_freq": 1000,
    "trainer.validation.max_tasks": 4,
    "trainer.save_freq": STEPS,
}
_WORKER = "ray::WorkerDict"


def begin(folder: Path, **variables: str) -> Popen[str]:
    words = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    return start(folder, "--conf", str(CALCULATOR), "--backbone", "verl", *words, together=True, **variables)


def run_of(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record" / "calculator"))


def test_the_calculator_gets_better_with_verl(tmp_path: Path) -> None:
    out, _ = begin(tmp_path).communicate(timeout=2400)
    run = run_of(tmp_path)
    lines = [line.metrics for line in run.metrics() if line.kind == "train"]
    rewards = [line["reward/mean"] for line in lines]
    assert run.info().status == "finished", out
    assert len(lines) == STEPS
    assert fmean(rewards[-2:]) > fmean(rewards[:2]), rewards
    for metrics in lines:
        assert metrics["train/engine_correlation"] > 0.99
        assert metrics["train/versions_behind_max"] == 0
        assert balance_of(metrics).difference == 0
    newest = run.checkpoints.latest()
    assert newest is not None
    assert (newest.model / "config.json").is_file()


def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path) -> None:
    modules = "astune.backbone.verl.cpu,untrue_verl"
    path = f"{ROOT}:{Path(__file__).parent}"
    process = begin(tmp_path, VERL_USE_EXTERNAL_MODULES=modules, PYTHONPATH=path)
    out, _ = process.communicate(timeout=2400)
    assert process.returncode == 1, out
    assert "did not sample with the weights that are trained" in out
    assert run_of(tmp_path).info().status == "failed"


def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    process = begin(tmp_path)
    give_up = time.monotonic() + 900
    while not _training(tmp_path):
        assert time.monotonic() < give_up
        assert process.poll() is None
        time.sleep(1)
    worker = next(one for one in psutil.process_iter(["cmdline"]) if _WORKER in " ".join(one.info["cmdline"] or []))
    worker.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    out, _ = process.communicate(timeout=120)
    assert time.monotonic() - killed < 60, out
    assert process.returncode == 1, out
    assert "the trainer worker 0 died" in out


def _training(folder: Path) -> bool:
    """The held-out tasks are measured, and the first step runs."""
    try:
        return any(line.kind == "validation" for line in run_of(folder).metrics())
    except Exception:
        return False
