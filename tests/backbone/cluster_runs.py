"""Training the calculator on a CPU with an engine on a local Ray: what the e2e tests of both engines have in common."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from subprocess import Popen
from typing import Any

import psutil
from astune_command import ROOT, start
from backbone_table import put, row_of
from safetensors.torch import load_file
from waiting import eventually

from astune.runs import RunDirectory, balance_of, resolve_run
from astune.schema import AstuneError

CALCULATOR = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
STEPS = 6
SETTINGS: dict[str, Any] = {
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
wait_for_run = partial(eventually, timeout_s=1800, every_s=1)


def python_of(engine: str) -> Path:
    return ROOT / f".venv-{engine}" / "bin" / "python"


UNEVEN = """
import random
from zlib import crc32

from tutorial.example_calculator.calculator import ExampleCalculatorLearn


class Uneven(ExampleCalculatorLearn):
    async def agentscope_execute(self, init_messages, astune_proxy, config):
        asked = init_messages[-1]["content"].encode()
        if crc32(asked) % 3 == 0 or random.random() < 0.1:
            raise RuntimeError("this agent fails now and then, and always with some tasks")
        return await super().agentscope_execute(init_messages, astune_proxy, config)
"""


def begin(engine: str, folder: Path, *arguments: str, conf: Path = CALCULATOR, **variables: str) -> Popen[str]:
    settings = SETTINGS | {f"environments.{engine}": python_of(engine)}
    words = set_to(*(f"{key}={value}" for key, value in settings.items()))
    command = ("--conf", str(conf), "--backbone", engine, *words, *arguments)
    return start(folder, *command, together=True, **variables)


def set_to(*settings: str) -> list[str]:
    """Words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


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


def kill_all_between_steps(name: str, process: Popen[str], folder: Path) -> None:
    """SIGKILL to those that run Trinity's groups, while the first step's are trained and they have nothing to do."""
    wait_for_run(lambda: _taken(folder, step=1), "the groups of step 1", process=process)
    killed = [one for one in psutil.Process(process.pid).children(recursive=True) if name in " ".join(one.cmdline())]
    assert killed
    for one in killed:
        one.send_signal(signal.SIGKILL)


_FOUND = {
    "changed": "did not sample with the weights that are trained",
    "same": "log-probabilities of a fixed text did not change",
}


def assert_finds_out_what_is_faked(engine: str, folder: Path, fake: str) -> None:
    """`untrue_<engine>.py` gives servers the weights of the first step, in one of two ways."""
    modules = f"astune.backbone.cpu_clusters.verl_on_cpu,untrue_{engine}"
    path = f"{ROOT}:{Path(__file__).parent}"
    process = begin(engine, folder, VERL_USE_EXTERNAL_MODULES=modules, PYTHONPATH=path, ASTUNE_TEST_FAKE=fake)
    out, _ = process.communicate(timeout=2400)
    assert process.returncode == 1, out
    assert _FOUND[fake] in out
    assert run_of(folder).info().status == "failed"


def assert_trains_adapters(engine: str, folder: Path) -> None:
    """Servers have the adapters that are trained, and a checkpoint is a whole model without them."""
    settings = ["model.lora.rank=16", "trainer.total_steps=3", "trainer.save_freq=3", "trainer.optim.lr=1e-3"]
    out, _ = begin(engine, folder, *set_to(*settings)).communicate(timeout=2400)
    run = run_of(folder)
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == 3
    assert min(line["train/engine_correlation"] for line in lines if "train/engine_correlation" in line) > 0.99
    newest = run.checkpoints.latest()
    assert newest is not None
    names = [name for file in newest.model.glob("*.safetensors") for name in load_file(file)]
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert not any("lora" in name for name in names)


def assert_goes_on_where_it_was_interrupted(engine: str, folder: Path) -> None:
    """Ctrl-C after the checkpoint of step 2, and on to step 4 with the weights and tasks that follow."""
    process = begin(engine, folder, *set_to("trainer.total_steps=4", "trainer.save_freq=2"))
    wait_for_run(lambda: saved(folder), "a checkpoint", process=process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    run = run_of(folder)
    began = [line.step for line in run.metrics() if line.kind == "train"]
    assert began[:2] == [1, 2]
    out, _ = start(folder, "--resume", str(run.path), together=True).communicate(timeout=2400)
    assert run_of(folder).info().status == "finished", out
    lines = [line for line in run.metrics() if line.kind == "train"]
    assert [line.step for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line.metrics.get("train/engine_correlation", 1.0) > 0.99
        assert line.metrics.get("train/versions_behind_max", 0) == 0
    newest = run.checkpoints.latest()
    assert newest is not None
    assert newest.step == 4


def assert_failing_agents_lose_nothing(engine: str, folder: Path) -> None:
    """Some episodes raise, and are run again; the groups of some tasks can never be completed."""
    (folder / "uneven.py").write_text(UNEVEN)
    steps = 3
    settings = [f"rollout.agentscope_learn_protocol={folder}/uneven.py->Uneven", f"trainer.total_steps={steps}"]
    out, _ = begin(engine, folder, *set_to(*settings)).communicate(timeout=1800)
    run = run_of(folder)
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == steps
    assert sum(line["episodes/failed_attempts"] for line in lines) > 0
    assert sum(line["groups/dropped"] for line in lines) > 0
    with run.episodes() as reader:
        recorded = reader.list(split="train")
    finished = [one for one in recorded if one.status != "error"]
    assert len(finished) == sum(line["episodes/finished"] for line in lines)
    assert len({one.n_turns for one in finished}) > 1
    assert all(one.not_trained or one.advantages for one in finished)
    for line in lines:
        assert balance_of(line).difference == 0


def saved(folder: Path, experiment: str = "calculator") -> bool:
    """Return whether the run has a checkpoint."""
    try:
        return run_of(folder, experiment).checkpoints.latest() is not None
    except AstuneError:  # it is only beginning
        return False


def _taken(folder: Path, *, step: int) -> bool:
    """Return whether Trinity's trainer has all groups of a step, by its own log."""
    try:
        log = run_of(folder).path / "checkpoints" / "trinity" / "log" / "trainer.log"
    except AstuneError:  # it is only beginning
        return False
    return log.is_file() and f"Sample data for step {step} finished." in log.read_text(encoding="utf-8")


def _training(folder: Path) -> bool:
    """The held-out tasks are measured, and the first step runs."""
    try:
        return bool(metrics_of(run_of(folder), "validation"))
    except AstuneError:  # it is only beginning
        return False
