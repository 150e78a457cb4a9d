"""Programs as agents, trained with an engine on a local Ray: a process an episode, an agent that is a server, and
workers that run them.

A few steps of the small real model, with rewards by chance. Conversations are recorded as everywhere, replay token for
token, and are trained with the probabilities that they were sampled with.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import yaml
from astune_command import ROOT, start
from cluster_runs import metrics_of, python_of, run_of, saved, set_to, wait_for_run
from ports import free_port

from astune.backbone.engines import load_renderer
from astune.context_tracker.replay import faults
from astune.engine.model_files import resolve_model
from astune.runs import balance_of
from tutorial.example_calculator.tasks import Split, make_tasks

AGENT = ROOT / "tutorial" / "example_any_agent"
MODEL = "builtin:smollm2-135m"
STEPS, TASKS, REPEATS = 2, 2, 4
_JUDGE = """
from astune import JudgeBase


class ByChance(JudgeBase):
    def compute_reward(self, judge_input_dictionary):
        return float(len(judge_input_dictionary["final_answer"]) % 7), True
"""


def assert_trains_a_program(engine: str, folder: Path) -> None:
    """`astune train ... -- COMMAND`, which calls the model by the standard library."""
    for name, split in _SPLITS.items():
        lines = [json.dumps(asdict(task)) for task in make_tasks(split, 8)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    files = ("--tasks", "tasks.jsonl", "--validation", "held_out.jsonl", "--judge", "judge.py")
    command = ("--", "python3", str(AGENT / "agent.py"))
    _assert_trained(engine, folder, "train", *files, "--model", MODEL, *_settings(engine), *command)


def assert_trains_an_agent_that_is_a_server(engine: str, folder: Path) -> None:
    """`rollout.workflow: {url: ...}`, which streams its answers by OpenAI's SDK."""
    values = yaml.safe_load((AGENT / "any_agent.yaml").read_text())["astune"]
    values["task_judge"] = {"judge_protocol": "judge.py->ByChance"}
    with _serving() as url:
        values["rollout"]["workflow"] = {"url": url}
        (folder / "tasks.yaml").write_text(yaml.safe_dump({"astune": values}))
        _assert_trained(engine, folder, "--conf", "tasks.yaml", *_settings(engine))


def assert_trains_an_agent_on_workers(engine: str, folder: Path) -> None:
    """`rollout.workflow: {workers: ...}`: a worker is killed, and the run is interrupted and goes on with another."""
    values = yaml.safe_load((AGENT / "any_agent.yaml").read_text())["astune"]
    values["task_judge"] = {"judge_protocol": "judge.py->ByChance"}
    port, mark = free_port(), folder / "begun"
    values["rollout"]["workflow"] = {"workers": f"127.0.0.1:{port}"}
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"astune": values}))
    (folder / "judge.py").write_text(_JUDGE)
    with _working(folder, port, 1, "-c", _HANGS, str(mark)) as lost:
        process = start(
            folder, "--conf", "tasks.yaml", *_settings(engine, save_freq=1), together=True, ASTUNE_WORKER_TOKEN=_TOKEN
        )
        wait_for_run(mark.exists, "an episode", process=process)
        assert not _processes_with_the_token(process)
        with _working(folder, port, 4, str(AGENT / "agent.py")):
            lost.kill()
            wait_for_run(lambda: saved(folder, "tasks"), "a checkpoint", process=process)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 130, out
            resume = ("--resume", str(run_of(folder, "tasks").path))
            out, _ = start(folder, *resume, together=True, ASTUNE_WORKER_TOKEN=_TOKEN).communicate(timeout=1800)
    _assert_recorded(folder, out)
    with run_of(folder, "tasks").episodes() as reader:
        failed = [each.error or "" for each in reader.episodes() if each.status == "error"]
    assert failed
    assert all(each.startswith("LeaseLost") for each in failed)


_TOKEN = "a secret of the whole run"
_HANGS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(3600)"


@contextmanager
def _working(folder: Path, port: int, parallel: int, *program: str) -> Iterator[subprocess.Popen[bytes]]:
    """`astune worker` with a Python program."""
    words = ["worker", "--connect", f"http://127.0.0.1:{port}", "--parallel", str(parallel), "--", sys.executable]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "ASTUNE_WORKER_TOKEN": _TOKEN}
    worker = subprocess.Popen([sys.executable, "-m", "astune", *words, *program], cwd=folder, env=variables)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait(timeout=20)


def _processes_with_the_token(of: subprocess.Popen[str]) -> list[str]:
    """The processes of the engine whose environment has the workers' token."""
    found = []
    for one in psutil.Process(of.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "ray" in " ".join(one.cmdline()) and _TOKEN in one.environ().values():
                found.append(one.name())
    return found


_SPLITS: dict[str, Split] = {"tasks": "train", "held_out": "validation"}


def _settings(engine: str, save_freq: int = STEPS) -> list[str]:
    words = {
        f"environments.{engine}": python_of(engine),
        "rollout.num_repeat": REPEATS,
        "rollout.max_model_len": 512,
        "rollout.max_response_length_in_one_turn": 48,
        "trainer.total_steps": STEPS,
        "trainer.tasks_per_step": TASKS,
        "trainer.optim.lr": "1e-4",
        "trainer.optim.warmup_steps": 0,
        "trainer.test_freq": 1000,
        "trainer.save_freq": save_freq,
        "trainer.validation.max_tasks": 2,
    }
    return ["--backbone", engine, *set_to(*(f"{key}={value}" for key, value in words.items()))]


def _assert_trained(engine: str, folder: Path, *arguments: str) -> None:
    (folder / "judge.py").write_text(_JUDGE)
    out, _ = start(folder, *arguments, together=True).communicate(timeout=1800)
    _assert_recorded(folder, out)


def _assert_recorded(folder: Path, out: str) -> None:
    run = run_of(folder, "tasks")
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == STEPS
    for line in lines:
        assert balance_of(line).difference == 0
        assert line["episodes/finished"] == TASKS * REPEATS
        assert line.get("train/engine_correlation", 1.0) > 0.99
    assert any("train/engine_correlation" in line for line in lines)
    renderer = load_renderer(resolve_model(MODEL))
    with run.episodes() as reader:
        recorded = [episode for episode in reader.list(split="train") if episode.status != "error"]
        broken = [fault for episode in reader.episodes(split="train") for fault in faults(episode.forest, renderer)]
    assert not broken
    assert len(recorded) == STEPS * TASKS * REPEATS
    assert {one.status for one in recorded} == {"success"}


@contextmanager
def _serving() -> Iterator[str]:
    """The agent's server, and the address that gets an episode."""
    port = free_port()
    server = subprocess.Popen([sys.executable, AGENT / "openai_server.py", str(port)])
    give_up = time.monotonic() + 60
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except ConnectionRefusedError:
                assert server.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/run"
    finally:
        server.terminate()
        server.wait(timeout=20)
