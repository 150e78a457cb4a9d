"""Readers of tasks, and the order in which tasks are trained on."""

from astune.task_reader.task_order import TaskOrder
from astune.task_reader.task_reader_base import (
    TaskReaderBase,
    TaskReaderEnvService,
    TaskReaderHuggingFace,
    TaskReaderJsonl,
    TaskSplits,
    how_to_hold_out,
    open_task_reader,
)

__all__ = [
    "TaskOrder",
    "TaskReaderBase",
    "TaskReaderEnvService",
    "TaskReaderHuggingFace",
    "TaskReaderJsonl",
    "TaskSplits",
    "how_to_hold_out",
    "open_task_reader",
]
