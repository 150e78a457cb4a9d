"""Names that both sides of the verl backbone know."""

VERSIONS = {"verl": "0.9.1"}
"""Reason of the hooks into verl."""
PREFIX = "astune_"
"""Before the name of a mode of verl's trainer, that of ours."""
QUEUE = {"name": "TransferQueueController", "namespace": "transfer_queue"}
"""The Ray actor of verl's queue, as every run of verl on a cluster looks it up."""
SYNC, COLOCATED, SEPARATE = "sync", "colocate_async", "separate_async"
MODES = (SYNC, COLOCATED, SEPARATE)
"""The modes of verl's trainer."""


def group_of(number: int, tasks_per_step: int) -> str:
    """The name of the group that runs a task, counted from 0 over all steps: of its step, and its place in it."""
    return f"{number // tasks_per_step + 1}/{number % tasks_per_step}"


def step_of(group: str) -> int:
    """The step that trains a group."""
    return int(group.partition("/")[0])
