"""What both sides of the Trinity backbone know."""

from __future__ import annotations

from astune.backbone.cluster.layers import of_user
from astune.config.schema import AstuneConfig

TASKS, HELD_OUT = "tasks", "held_out"
"""The task sets, as Trinity's files and in its batches."""


def measures(config: AstuneConfig) -> bool:
    """Whether held-out tasks are measured: the explorer pauses for that where it pauses to take weights."""
    return of_user(config, "trinity", "synchronizer.sync_style") != "fully_async"
