"""verl's replay buffer, where episodes are run ahead of the trainer.

verl would take whichever groups are finished first. Here a step is given its own: it trains the tasks that it has with
every backbone, and no group waits for longer than it was begun ahead.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from astune.backbone.cluster.hooks import hook, hooks
from astune.backbone.verl.names import step_of


@hooks
class GroupsOfStep(ReplayBufferAsync):
    """Waits for the groups of the step that is to be trained; measurements are verl's to gather."""

    @hook
    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        if partition_id == "train":
            sampleable_keys = {uid for uid in sampleable_keys if step_of(uid) == global_steps}
        return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)

    @hook
    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        if partition_id == "train":
            step = min(map(step_of, sampleable_keys))  # the steps before it have been trained
            sampleable_keys = {uid for uid in sampleable_keys if step_of(uid) == step}
        return super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
