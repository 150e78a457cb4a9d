"""The process that calls verl, in verl's environment: `python -m astune.backbone.verl`.

`../cluster/supervise.py` starts it.

With `plan` it prints verl's whole configuration for a job on its standard input, and starts nothing.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from astune.backbone.cluster.causes import first_cause
from astune.backbone.cluster.reports import ADDRESS, TOKEN, Reports
from astune.schema import AstuneError

_PLUGIN = {
    "VERL_USE_EXTERNAL_MODULES": "astune.backbone.verl.cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_WAIT_POLICY": "passive",  # threads that spin while they wait take the cores of other processes
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # Ray would give each process one
}


def main(arguments: list[str]) -> int:
    on_cpu = _on_cpu()
    if arguments == ["plan"]:
        return _plan(orjson.loads(sys.stdin.buffer.read()), on_cpu=on_cpu)
    keeper = Reports(os.environ[ADDRESS], os.environ[TOKEN])
    try:
        _run(keeper.job(), on_cpu=on_cpu)
    except AstuneError as failure:
        keeper.tell("failed", error=str(failure))
        return 1
    except Exception as failure:
        keeper.tell("failed", error=first_cause(failure))
        raise
    return 0


def _on_cpu() -> bool:
    """Whether there is no GPU; verl is told before it is imported."""
    import torch

    if torch.cuda.is_available():
        return False
    os.environ.update({name: os.environ.get(name, value) for name, value in _PLUGIN.items()})
    return True


def _plan(job: Mapping[str, Any], *, on_cpu: bool) -> int:
    from omegaconf import OmegaConf

    from astune.backbone.verl.settings import verl_config

    try:
        sys.stdout.write(OmegaConf.to_yaml(verl_config(job, on_cpu=on_cpu)))
    except AstuneError as failure:
        sys.stderr.write(f"{failure}\n")
        return 2
    return 0


def _run(job: Mapping[str, Any], *, on_cpu: bool) -> None:
    from astune.backbone.verl.settings import verl_config

    config = verl_config(job, on_cpu=on_cpu)
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
    sys.exit(main(sys.argv[1:]))
