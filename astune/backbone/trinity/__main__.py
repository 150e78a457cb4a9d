"""The process that calls Trinity, in Trinity's environment: `python -m astune.backbone.trinity`.

`../cluster/supervise.py` starts it. With `plan` it prints Trinity's whole configuration for a job on its standard
input, and starts nothing.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from astune.backbone.cluster.causes import first_cause
from astune.backbone.cluster.reports import ADDRESS, TOKEN, Reports
from astune.schema import AstuneError

_STARTUP = str(Path(__file__).parent / "startup")
_ON_CPU = {
    "VERL_USE_EXTERNAL_MODULES": "astune.backbone.verl.cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # Ray would give each process one
    "OMP_WAIT_POLICY": "passive",  # threads that spin while they wait take the cores of other processes
}
_RAY_ON_CPU = {"num_cpus": 16, "num_gpus": 2, "object_store_memory": 500_000_000}
"""Two places to compute that Trinity takes for GPUs: one for its model, one for its trainer."""


def main(arguments: list[str]) -> int:
    on_cpu = _on_cpu()
    if arguments == ["plan"]:
        return _plan(orjson.loads(sys.stdin.buffer.read()), on_cpu=on_cpu)
    keeper = Reports(os.environ[ADDRESS], os.environ[TOKEN])
    try:
        job = keeper.job()
        _guard_own_ray(job)
        _run(job, on_cpu=on_cpu)
    except AstuneError as failure:
        keeper.tell("failed", error=str(failure))
        return 1
    except Exception as failure:
        keeper.tell("failed", error=first_cause(failure))
        raise
    return 0


def _on_cpu() -> bool:
    """Whether there is no GPU; Trinity, verl and vLLM are told before they are imported."""
    import torch

    if torch.cuda.is_available():
        return False
    from astune.backbone.trinity import cpu

    cpu.require_known_versions()
    cpu.install()
    os.environ.update({name: os.environ.get(name, value) for name, value in _ON_CPU.items()})
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STARTUP, os.environ.get("PYTHONPATH")]))
    return True


def _guard_own_ray(job: Mapping[str, Any]) -> None:
    """A Ray that is started for this run answers nobody else; Ray reads this when it is imported."""
    if (job["config"]["trinity"].get("cluster") or {}).get("ray_address", "local") == "local":
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _plan(job: dict[str, Any], *, on_cpu: bool) -> int:
    from omegaconf import OmegaConf

    from astune.backbone.trinity.settings import trinity_config

    with tempfile.TemporaryDirectory() as folder:  # Trinity makes folders when it checks
        real, job["checkpoints"] = job["checkpoints"], f"{folder}/trinity"
        try:
            made = OmegaConf.to_yaml(OmegaConf.structured(trinity_config(job, on_cpu=on_cpu)))
        except AstuneError as failure:
            sys.stderr.write(f"{failure}\n")
            return 2
    sys.stdout.write(made.replace(f"{folder}/trinity", real))
    return 0


def _run(job: Mapping[str, Any], *, on_cpu: bool) -> None:
    from astune.backbone.trinity.settings import trinity_config, write_tasks

    _forget_what_came_after(job)
    write_tasks(job)
    config = trinity_config(job, on_cpu=on_cpu)
    address = config.cluster.ray_address
    import ray

    ray.init(
        address=address,
        namespace=config.ray_namespace,
        include_dashboard=None if address != "local" else False,
        runtime_env={"env_vars": config.get_envs()},
        **(_RAY_ON_CPU if on_cpu and address == "local" else {}),
    )
    try:
        _explore_and_train(config)
    finally:
        ray.shutdown()


def _forget_what_came_after(job: Mapping[str, Any]) -> None:
    """Have Trinity go on from the step that the run goes on from, whatever it wrote since."""
    folder, step = Path(job["checkpoints"]), job["first_step"] - 1
    for state in folder.glob("*_meta.json"):
        state.unlink()
    if not step:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in ("latest_checkpointed_iteration.txt", "latest_state_dict_iteration.txt"):
        (folder / name).write_text(str(step))
    for later in folder.glob("global_step_*"):
        if int(later.name.rpartition("_")[2]) > step:
            shutil.rmtree(later)


def _explore_and_train(config: Any) -> None:
    """Until both have ended; a failure of either ends the run where it is told, and here at the latest."""
    import ray
    from trinity.common.constants import SyncMethod
    from trinity.manager.synchronizer import Synchronizer

    from astune.backbone.trinity.explorer import ToldExplorer
    from astune.backbone.trinity.trainer import ToldTrainer

    explorer, trainer = ToldExplorer.get_actor(config), ToldTrainer.get_actor(config)
    ray.get([explorer.prepare.remote(), trainer.prepare.remote()])
    if config.synchronizer.sync_method == SyncMethod.NCCL:
        synchronizer = Synchronizer.get_actor(namespace=config.ray_namespace)
        ray.get(synchronizer.coordinate_weight_sync_setup.remote())
    ray.get([explorer.sync_weight.remote(), trainer.sync_weight.remote()])
    ray.get([explorer.explore.remote(), trainer.train.remote()])
    ray.get([explorer.shutdown.remote(), trainer.shutdown.remote()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
