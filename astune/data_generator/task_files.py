"""Tasks as JSONL files that are there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from astune.config.output_file import write_whole
from astune.schema import Task, TaskReaderError


def held_out_beside(out: Path) -> Path:
    """The file of held-out tasks that belongs to the file `out` of training tasks."""
    return out.with_name(f"{out.stem}.held_out{out.suffix or '.jsonl'}")


def line_of(task: Task) -> str:
    """The task as a line of a file, with the fields that it has. Raises TaskReaderError if it holds what JSON cannot
    express."""
    try:
        return json.dumps({name: value for name, value in asdict(task).items() if value}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as cause:
        raise TaskReaderError(
            f"task {task.task_id} cannot be written as JSON: {cause}",
            hint="use texts, finite numbers, lists and mappings in its metadata",
        ) from cause


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write one task a line.

    Raises:
        ConfigError: the file cannot be written.
        TaskReaderError: a task holds what JSON cannot express.
    """
    write_whole(path, "".join(f"{line_of(task)}\n" for task in tasks))
