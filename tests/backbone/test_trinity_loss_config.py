from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from engine_side import needs, python_of

from astune.backbone.cluster.job import Job, StepsToCome
from astune.backbone.trinity.names import config_of_loss
from astune.config.schema import AstuneConfig
from astune.schema import Task


def test_a_worker_of_trinitys_reads_the_loss_from_the_parts_that_it_is_given() -> None:
    loss = AstuneConfig().trainer.loss.model_copy(update={"kl_coef": 0.1})
    read = config_of_loss(json.dumps({"trainer": {"loss": loss.model_dump(mode="json")}}))
    assert read.trainer.loss == loss


@pytest.mark.slow
@needs("trinity")[1]
def test_two_processes_of_runs_on_one_cluster_do_not_share_what_trinity_looks_up_by_name(tmp_path: Path) -> None:
    job = Job("trinity", AstuneConfig(), None, tmp_path, StepsToCome([[Task("1", "?")]], [{}]), [], tmp_path / "run")
    command = [python_of("trinity").absolute(), "-m", "astune.backbone.trinity", "plan"]
    order = json.dumps(job.work_order().model_dump(mode="json"))
    plans = [subprocess.run(command, input=order, capture_output=True, text=True, check=True) for _ in range(2)]
    first, second = (yaml.safe_load(plan.stdout)["ray_namespace"] for plan in plans)
    assert first != second
