"""Trinity's rollout coordinator, whose runners are replaced where they died while they had nothing to run.

Trinity starts a new one only after a task was given to the old one, and forgets that task: its batch is then waited for
until it times out.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

from typing import Any

import ray
import trinity.explorer.scheduler as trinity_scheduler
from ray.exceptions import RayActorError
from trinity.explorer.rollout_coordinator import RolloutCoordinator

from astune.backbone.cluster.hooks import hook, hooks, replace


@hooks
class LastingRunner(trinity_scheduler.RunnerWrapper):
    """Restart a dead runner before it receives a group."""

    @hook
    async def run_with_retry(self, *arguments: Any, **named: Any) -> Any:
        try:
            await self.runner.__ray_ready__.remote()
        except RayActorError:
            self.logger.warning(f"Runner {self.runner_id} died and is restarted.")
            await self.restart_runner()
        return await super().run_with_retry(*arguments, **named)


@hooks
class Coordinator(RolloutCoordinator):
    """Schedules groups on them."""

    @hook
    async def _init_scheduler(self) -> None:
        replace(trinity_scheduler, "RunnerWrapper", LastingRunner)
        await super()._init_scheduler()

    @hook
    @classmethod
    def get_actor(cls, config: Any) -> Any:
        """A process of its own, as Trinity's."""
        return ray.remote(cls).options(namespace=config.ray_namespace).remote(config)
