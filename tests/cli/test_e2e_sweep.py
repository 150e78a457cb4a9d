"""`make e2e-sweep`: a sweep on a real Ray head, whose scheduler has room for two of three trials at once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from astune_command import astune, start
from test_sweep import conf

from astune.runs import RunDirectory, runs_below

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
__all__ = ["conf"]
RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if not RAY.is_file():
        pytest.skip("Ray is not installed in this environment: make e2e-sweep makes one")
    folder = tmp_path_factory.mktemp("ray")
    command = [str(RAY), "start", "--head", "--block", "--port=0", "--num-cpus=2", "--include-dashboard=false"]
    short = Path(f"/tmp/ray-{os.getpid()}")  # Ray's sockets need short paths
    with open(folder / "log", "w") as log:
        head = subprocess.Popen([*command, f"--temp-dir={short}"], stdout=log, stderr=log, start_new_session=True)
    address = None
    while address is None:
        assert head.poll() is None, (folder / "log").read_text()
        address = re.search(r"--address='([^']+)'", (folder / "log").read_text())
        time.sleep(0.2)
    monkeypatch.setenv("RAY_ADDRESS", address[1])
    yield address[1]
    os.killpg(head.pid, signal.SIGTERM)
    head.wait(timeout=60)
    shutil.rmtree(short, ignore_errors=True)


def test_trials_run_on_the_cluster_and_a_killed_sweep_goes_on(conf: Path, cluster: str) -> None:
    command = ("sweep", str(conf), "--over", "trainer.optim.lr=1e-4,5e-4,1e-3", "--ray")
    folder = conf.parent / "launcher_record" / "ask-sweep"
    process = start(conf.parent, *command, together=True)
    while not folder.is_dir() or len(runs_below(folder)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    said = astune(conf.parent, *command, timeout_s=900)
    assert said.count("finished; held-out") == 3, said
    infos = [RunDirectory.look_at(run).info() for run in runs_below(folder)]
    finished = [info for info in infos if info.status == "finished"]
    assert len(finished) == 3
    assert "1 of 1" in (folder / "report.html").read_text(encoding="utf-8")


def test_without_a_cluster_it_says_how_to_start_one(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    said = astune(conf.parent, "sweep", str(conf), "--ray", status=2, timeout_s=60)
    assert "no Ray cluster" in said
    assert "ray start --head" in said
