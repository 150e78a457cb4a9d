"""verl's task runner, in whose process the trainer runs, with our trainers known to it."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from astune.backbone.cluster.hooks import hook, hooks


@hooks
class _Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    @hook
    def run(self, config: Any) -> None:
        # verl imports the other two when it gets there; what they replace is checked now
        from astune.backbone.verl import sampler, trainer, workers  # noqa: F401

        trainer.register()
        super().run(config)


def runner() -> Any:
    """Task runner with the interface of verl's `run_ppo`."""
    return ray.remote(_Runner)
