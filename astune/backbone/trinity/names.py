"""What both sides of the Trinity backbone know."""

from __future__ import annotations

from typing import Any

from astune.backbone.cluster.layers import leaves
from astune.config.schema import AstuneConfig

TASKS, HELD_OUT = "tasks", "held_out"
"""The task sets, as Trinity's files and in its batches."""


def of_user(config: AstuneConfig, key: str, default: Any) -> Any:
    """What the user's own section says of a key of Trinity's."""
    return dict(leaves(config.trinity)).get(key, default)


def measures(config: AstuneConfig) -> bool:
    """Whether held-out tasks are measured: the explorer pauses for that where it pauses to take weights."""
    return of_user(config, "synchronizer.sync_style", None) != "fully_async"
