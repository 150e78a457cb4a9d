"""verl's task runner, in whose process the trainer runs, with our trainers known to it."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1


class _Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    def run(self, config: Any) -> None:
        from astune.backbone.verl import trainer

        trainer.register()
        super().run(config)


def runner() -> Any:
    """As verl's `run_ppo` takes it."""
    return ray.remote(_Runner)
