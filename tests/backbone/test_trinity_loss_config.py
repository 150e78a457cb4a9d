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


_AGENT = """
from astune.workflow import Workflow

class Agent(Workflow):
    async def execute(self, task, proxy): ...
"""


@pytest.mark.slow
@needs("trinity")[1]
def test_two_processes_of_runs_on_one_cluster_do_not_share_what_trinity_looks_up_by_name(
    tmp_path: Path, tiny_folder: Path
) -> None:
    (tmp_path / "agent.py").write_text(_AGENT)
    config = AstuneConfig.model_validate({"rollout": {"workflow": "agent.py->Agent"}})
    steps = StepsToCome([[Task("1", "?")] * config.trainer.tasks_per_step], [{}])
    job = Job("trinity", config, tmp_path, tiny_folder, steps, [], tmp_path / "run")
    command = [python_of("trinity").absolute(), "-m", "astune.backbone.trinity", "plan"]
    order = json.dumps(job.work_order().model_dump(mode="json"))
    plans = [subprocess.run(command, input=order, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [plan.returncode for plan in plans] == [0, 0], plans[0].stderr[-1000:]
    first, second = (yaml.safe_load(plan.stdout)["ray_namespace"] for plan in plans)
    assert first != second
