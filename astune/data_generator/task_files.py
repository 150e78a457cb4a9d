"""Tasks as JSONL files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from astune.schema import Task, TaskReaderError


def held_out_beside(out: Path) -> Path:
    """The file of held-out tasks that belongs to the file `out` of training tasks."""
    return out.with_name(f"{out.stem}.held_out{out.suffix or '.jsonl'}")


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write one task a line, with the fields that it has.

    Raises:
        TaskReaderError: the file cannot be written.
    """
    lines = [json.dumps({name: value for name, value in asdict(task).items() if value}) for task in tasks]
    write_whole(path, "".join(f"{line}\n" for line in lines))


def write_whole(path: Path, text: str) -> None:
    """Put the text into the file in one step.

    Raises:
        TaskReaderError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as cause:
        temporary.unlink(missing_ok=True)
        raise TaskReaderError(
            f"{path} cannot be written: {cause.strerror or cause}", hint="check the folder and its permissions"
        ) from cause
