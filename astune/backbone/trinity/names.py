"""Names shared by both sides of the Trinity backbone."""

from __future__ import annotations

import json

from astune.backbone.cluster.layers import of_user
from astune.config.schema import AstuneConfig

VERSIONS = {"trinity-rft": "0.6.0", "verl": "0.9.1"}
"""Reason of the hooks into Trinity."""
TASKS, HELD_OUT = "tasks", "held_out"
"""The task sets, as Trinity's files and in its batches."""


def n_models(config: AstuneConfig) -> int:
    """Models that sample, each with its own runners."""
    return int(of_user(config, "trinity", "explorer.rollout_model.engine_num", 1))


def runners_per_model(config: AstuneConfig) -> int:
    """Processes that run one group at a time, as many as there is room for; a step has no use for more groups."""
    rollout, trainer = config.rollout, config.trainer
    room, wanted = rollout.max_env_worker // rollout.num_repeat, trainer.tasks_per_step * (trainer.max_staleness + 1)
    return max(1, min(room, wanted) // n_models(config))


def n_runners(config: AstuneConfig) -> int:
    return n_models(config) * runners_per_model(config)


def config_of_loss(parts: str) -> AstuneConfig:
    """The configuration of which `parts`, in JSON, say the loss; all others have their defaults.

    It is parsed as Python's values: where pydantic parses JSON itself, it refuses a default that JSON has no type for.
    """
    return AstuneConfig.model_validate(json.loads(parts))
