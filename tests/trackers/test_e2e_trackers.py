"""One run and its resume, shown by wandb, SwanLab and MLflow in their local modes, and read back from what they wrote.

`make e2e-trackers` runs it in an environment that has the three libraries.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_experiment import AGENT, small_experiment

import astune

pytestmark = pytest.mark.e2e

LIBRARIES = ("wandb", "swanlab", "mlflow")


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[astune.Run]:
    """A run of two steps that was resumed for a third."""
    for library in LIBRARIES:
        pytest.importorskip(library)
    folder, former = tmp_path_factory.mktemp("tracked"), Path.cwd()
    os.chdir(folder)
    trackers = [
        {"type": "wandb", "params": {"mode": "offline", "tags": ["small"]}},
        {"type": "swanlab", "params": {"mode": "local"}},
        {"type": "mlflow", "params": {"tracking_uri": f"sqlite:///{folder}/mlflow.db"}},
    ]
    settings = small_experiment(folder, tiny_folder) | {"experiment_name": "tracked", "trackers": trackers}
    try:
        run = astune.train(settings)
        yield astune.resume(run, trainer={"total_steps": 3})
    finally:
        os.chdir(former)


def expected(run: astune.Run) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row["reward/mean"])) for row in run.metrics("train")]


def test_wandb_has_every_step_in_one_run(run):
    files = sorted((run.path / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for file in files for record in wandb_records(file)]
    assert len({record.run.run_id for record in records if record.WhichOneof("record_type") == "run"}) == 1
    [start, *_] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (start.project, list(start.tags)) == ("astune", ["small"])
    assert start.display_name == f"tracked/{run.path.name}"
    shown: list[tuple[int, float]] = []
    for record in records:
        values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "train/reward/mean" in values:
            shown.append((values["step"], values["train/reward/mean"]))
    assert shown == expected(run)
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0, 0]


def test_swanlab_has_every_step(run):
    shown: list[tuple[int, float]] = []
    for folder in sorted((run.path / "swanlab").glob("run-*")):
        series = [[json.loads(line) for line in file.read_text().splitlines()] for file in folder.glob("logs/*/*.log")]
        means = dict(expected(run))
        [found] = {
            tuple((point["index"], point["data"]) for point in points)
            for points in series
            if all(means.get(point["index"]) == point["data"] for point in points)
        } or [()]
        shown += sorted(found)
    assert shown == expected(run)


def test_mlflow_has_every_step_in_one_run_that_is_finished(run):
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.path.parents[2]}/mlflow.db")
    experiment = client.get_experiment_by_name("astune")
    [shown] = client.search_runs([experiment.experiment_id])
    assert shown.info.status == "FINISHED"
    assert shown.info.run_name == f"tracked/{run.path.name}"
    assert shown.data.params["trainer.total_steps"] == "2"
    history = client.get_metric_history(shown.info.run_id, "train/reward/mean")
    assert [(one.step, one.value) for one in history] == expected(run)
    assert len(client.get_metric_history(shown.info.run_id, "validation/reward/mean")) == len(run.metrics("validation"))


@pytest.mark.parametrize("library", ["wandb", "swanlab"])
def test_without_a_key_it_is_a_warning_and_the_run_goes_on(library, run, tmp_path):
    """Also at a terminal, where these libraries would ask."""
    code = (
        "import astune; run = astune.train({'experiment_name': 'keyless', 'model': {'path': %r}, 'backbone': 'debug',"
        "'rollout': {'workflow': 'agent.py->Agent', 'max_model_len': 128, 'max_response_length_in_one_turn': 8},"
        "'task_reader': {'type': 'agent.py->Tasks'}, 'trackers': %r}); assert run.status == 'finished'"
    )
    (tmp_path / "agent.py").write_text(AGENT)
    keys = ("WANDB_API_KEY", "SWANLAB_API_KEY", "WANDB_MODE", "SWANLAB_MODE")
    environment = {name: value for name, value in os.environ.items() if name not in keys} | {"HOME": str(tmp_path)}
    # `script` gives the process a terminal.
    command = ["script", "-qec", f"{sys.executable} -c {shell(code % (run.config.model.path, library))}", "/dev/null"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"warning: tracker {library} failed, and nothing is sent to it" in " ".join(done.stdout.split())


def shell(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def wandb_records(path: Path) -> list:
    """The records of a .wandb file: LevelDB's log format behind a header of 7 bytes."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, records, parts = path.read_bytes(), [], []
    position, block = 7, 32768
    while position + 7 <= len(data):
        if block - position % block < 7:
            position += block - position % block
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = messages.Record()
            record.ParseFromString(b"".join(parts))
            records.append(record)
            parts = []
    return records
