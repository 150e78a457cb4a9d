"""The process that calls verl's `run_ppo`; `../cluster/process.py` says how."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import sys

from astune.backbone.cluster.process import main
from astune.backbone.cluster.work_order import WorkOrder
from astune.backbone.verl.names import VERSIONS


def plan(order: WorkOrder, *, on_cpu: bool) -> str:
    from omegaconf import OmegaConf

    from astune.backbone.verl.settings import verl_config

    return OmegaConf.to_yaml(verl_config(order, on_cpu=on_cpu))


def run(order: WorkOrder, *, on_cpu: bool) -> None:
    from astune.backbone.verl.settings import verl_config

    config = verl_config(order, on_cpu=on_cpu)
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from astune.backbone.verl.runner import runner

    if not on_cpu:
        auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    run_ppo(config, task_runner_class=runner())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], plan=plan, run=run, versions=VERSIONS, engine="verl"))
