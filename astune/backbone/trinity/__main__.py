"""The process that starts Trinity's explorer and trainer, and waits for both; `../cluster/process.py` says how."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.process import main
from astune.backbone.cluster.work_order import WorkOrder
from astune.backbone.trinity.names import VERSIONS

_STARTUP = str(Path(__file__).parents[1] / "cpu_clusters" / "startup")


def on_cpu_first() -> None:
    from astune.backbone.cpu_clusters import trinity_on_cpu

    trinity_on_cpu.install()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STARTUP, os.environ.get("PYTHONPATH")]))


def plan(order: WorkOrder, *, on_cpu: bool) -> str:
    from omegaconf import OmegaConf

    from astune.backbone.trinity.settings import trinity_config

    with tempfile.TemporaryDirectory() as folder:  # Trinity makes folders when it checks
        elsewhere = order.model_copy(update={"checkpoints": Path(folder, "trinity")})
        made = OmegaConf.to_yaml(OmegaConf.structured(trinity_config(elsewhere, on_cpu=on_cpu)))
    return made.replace(folder, str(order.checkpoints.parent))


def run(order: WorkOrder, *, on_cpu: bool) -> None:
    from astune.backbone.trinity.settings import trinity_config, write_tasks

    _forget_what_came_after(order)
    write_tasks(order)
    config = trinity_config(order, on_cpu=on_cpu)
    import ray

    ray.init(
        address=config.cluster.ray_address,
        namespace=config.ray_namespace,
        include_dashboard=False if ray_cluster.address() == ray_cluster.OWN else None,
        runtime_env={"env_vars": config.get_envs()},
        **ray_cluster.resources(on_cpu=on_cpu),
    )
    try:
        _explore_and_train(config)
    finally:
        ray.shutdown()


def _forget_what_came_after(order: WorkOrder) -> None:
    """Make Trinity resume from the run's checkpoint, whatever it wrote since."""
    folder, step = order.checkpoints, order.done
    if not step:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in ("explorer_meta.json", "latest_state_dict_iteration.txt"):  # the trainer publishes its weights again
        (folder / name).unlink(missing_ok=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def _explore_and_train(config: Any) -> None:
    """Wait until both have ended; a failure of either ends the run."""
    import ray
    from trinity.common.constants import SyncMethod
    from trinity.manager.synchronizer import Synchronizer

    from astune.backbone.trinity.explorer import ReportingExplorer
    from astune.backbone.trinity.trainer import ReportingTrainer

    explorer, trainer = ReportingExplorer.get_actor(config), ReportingTrainer.get_actor(config)
    ray.get([explorer.prepare.remote(), trainer.prepare.remote()])
    if config.synchronizer.sync_method == SyncMethod.NCCL:
        synchronizer = Synchronizer.get_actor(namespace=config.ray_namespace)
        ray.get(synchronizer.coordinate_weight_sync_setup.remote())
    ray.get([explorer.sync_weight.remote(), trainer.sync_weight.remote()])
    ray.get([explorer.explore.remote(), trainer.train.remote()])
    ray.get([explorer.shutdown.remote(), trainer.shutdown.remote()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], plan=plan, run=run, versions=VERSIONS, engine="trinity", on_cpu_first=on_cpu_first))
