"""Tasks that environments generate from seeds, and their ids (`train-17`, `validation-3`)."""

from __future__ import annotations

import re

from astune.schema import EnvError

SPLITS = {"train": (0, 1000), "validation": (1_000_000, 200)}
"""First seed and number of tasks of each split; task i is made from that seed + i, so that the splits do not meet."""

_ID = re.compile(rf"({'|'.join(SPLITS)})-(\d+)")


def task_ids(split: str, *, environment: str) -> list[str]:
    """Return the ids of a split's tasks. Raises EnvError if there is no such split.

    Args:
        environment: its name, for the error.
    """
    if split not in SPLITS:
        raise EnvError(f"{environment} has no split {split!r}", hint=f"use {' or '.join(SPLITS)}")
    return [f"{split}-{index}" for index in range(SPLITS[split][1])]


def split_and_index(task_id: str) -> tuple[str, int] | None:
    """Return the split and index of the task with this id; None if it is not one of these."""
    own = _ID.fullmatch(task_id)
    if own is None or int(own[2]) >= SPLITS[own[1]][1]:
        return None
    return own[1], int(own[2])
