"""Making tasks: from documents, and from a few examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astune.app.data_report import report_html
from astune.config import AstuneConfig
from astune.data_generator import (
    Made,
    Material,
    OnProgress,
    held_out_beside,
    make_tasks,
    read_material,
    write_tasks,
    write_whole,
)
from astune.helper_model import HelperModel
from astune.schema import TaskReaderError
from astune.task_reader.data_reader import examples_in, token_counter


def read(config: AstuneConfig, documents: Sequence[Path], seeds: Path | None) -> Material:
    """What tasks are made of.

    Raises:
        TaskReaderError: it cannot be read.
    """
    if seeds is not None and not seeds.is_file():
        raise TaskReaderError(f"there is no file {seeds}", hint="name a JSONL file of example tasks")
    examples = examples_in(seeds, config.task_judge.reference_field) if seeds is not None else []
    return read_material(config.task_reader.data_generation, documents, examples, token_counter(config))


async def make(config: AstuneConfig, material: Material, out: Path, on_progress: OnProgress) -> Made:
    """Make the tasks and write them: training tasks to `out`, held-out ones and the report beside it.

    Raises:
        AstuneError: the helper model does not answer, nothing came of it, or a file cannot be written.
    """
    model = HelperModel(config.helper_model)
    made = await make_tasks(config.task_reader.data_generation, material, model, config.sandbox, on_progress)
    write_tasks(out, made.training)
    write_tasks(held_out_beside(out), made.held_out)
    write_whole(report_beside(out), report_html(made, out.name))
    return made


def report_beside(out: Path) -> Path:
    """The report that belongs to the file of tasks `out`."""
    return out.with_name(f"{out.stem}.report.html")
