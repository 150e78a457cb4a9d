"""Backbones by name: those that are shipped, and one of the user's own in a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from astune_command import astune

from astune.backbone.base import Backbone, find_backbone, shipped_backbones
from astune.config import load_config
from astune.runs import RunDirectory, resolve_run
from astune.schema import ConfigError

OWN = """
from astune.backbone.base import Backbone
from astune.schema import ConfigError
from astune.workflow import Workflow


class Agent(Workflow):
    async def execute(self, task, proxy): ...


class Counts(Backbone):
    def check(self, config):
        if config.seed == 13:
            raise ConfigError("seed 13 cannot be counted to", hint="set seed to 12")

    def particulars(self, config, *, starts_ray):
        return [("counting", "one step")]

    async def train(self, config, parts, run, observer, *, base_dir=None):
        observer.on_phase("counting")
        with run.open_metrics() as metrics:
            metrics.append(1, "train", {"reward/mean": float(len(parts.training_tasks))})
        observer.on_record(1, "train", {"reward/mean": float(len(parts.training_tasks))})
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "tasks.jsonl").write_text('{"main_query": "one"}\n{"main_query": "two"}\n')
    (tmp_path / "conf.yaml").write_text(
        "astune:\n  backbone: own.py->Counts\n  rollout: {workflow: own.py->Agent}\n"
        f"  model: {{path: {tiny_folder}}}\n  task_reader: {{jsonl: {{training: {{file_path: tasks.jsonl}}}}}}\n"
    )
    return tmp_path


def test_every_shipped_backbone_is_found_and_accepted_by_the_configuration():
    for name in shipped_backbones():
        assert isinstance(find_backbone(load_config(None, [f"backbone={name}"]).backbone), Backbone)


@pytest.mark.slow
def test_no_shipped_backbone_imports_torch_before_it_trains():
    code = "from astune.backbone.base import *; import sys; [find_backbone(name) for name in shipped_backbones()]"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)


@pytest.mark.slow
def test_a_users_backbone_is_checked_planned_and_run(folder):
    assert "counting   one step" in astune(folder, "--conf", "conf.yaml", "--dry-run")
    assert "seed 13 cannot be counted to" in astune(folder, "--conf", "conf.yaml", "--set", "seed=13", status=2)
    astune(folder, "--conf", "conf.yaml")
    run = RunDirectory.open(resolve_run(folder / "launcher_record"))
    assert run.info().status == "finished"
    assert [line.metrics["reward/mean"] for line in run.metrics()] == [2.0]
    assert list((run.backup / "sources").rglob("own.py"))


def test_what_is_no_backbone_is_refused_with_the_base_class(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"backbone: Agent in own\.py is not a Backbone"):
        find_backbone("own.py->Agent")
