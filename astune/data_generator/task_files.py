"""Tasks as JSONL files that are there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from astune.config.output_file import write_whole
from astune.schema import Task


def held_out_beside(out: Path) -> Path:
    """The file of held-out tasks that belongs to the file `out` of training tasks."""
    return out.with_name(f"{out.stem}.held_out{out.suffix or '.jsonl'}")


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write one task a line, with the fields that it has.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = [json.dumps({name: value for name, value in asdict(task).items() if value}) for task in tasks]
    write_whole(path, "".join(f"{line}\n" for line in lines))
