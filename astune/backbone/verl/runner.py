"""verl's task runner, in whose process the trainer runs, with our trainers known to it and a queue of its own."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import time
from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from astune.backbone.cluster.hooks import hook, hooks
from astune.backbone.verl.names import QUEUE
from astune.schema import ConfigError

_ENDS_WITHIN_S = 60.0


@hooks
class _Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    @hook
    def run(self, config: Any) -> None:
        # verl imports the other two when it gets there; what they replace is checked now
        from astune.backbone.verl import sampler, trainer, workers  # noqa: F401

        trainer.register()
        require_own_queue(_ENDS_WITHIN_S)
        super().run(config)


def runner() -> Any:
    """Task runner with the interface of verl's `run_ppo`."""
    return ray.remote(_Runner)


def require_own_queue(within_s: float) -> None:
    """Wait for the end of an earlier run's queue: verl would take part in it, and train what another run put there.

    Raises:
        ConfigError: it is still there.
    """
    give_up = time.monotonic() + within_s
    while _has_queue():
        if time.monotonic() > give_up:
            raise ConfigError(
                "another run of verl uses this Ray cluster, and they would share one queue",
                hint="wait for its end, or unset RAY_ADDRESS for a Ray of its own",
            )
        time.sleep(1)


def _has_queue() -> bool:
    try:
        ray.get_actor(**QUEUE)
    except ValueError:
        return False
    return True
