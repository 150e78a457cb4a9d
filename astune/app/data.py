"""Task generation from documents and from example tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from html import escape
from pathlib import Path

from astune.app.console import Console
from astune.app.evaluation import measure
from astune.app.experiment import Experiment
from astune.app.html_page import page, table
from astune.config import AstuneConfig
from astune.config.output_file import require_output, write_whole
from astune.config.strict import changed
from astune.data_generator import (
    ANSWER,
    Draft,
    Made,
    Material,
    OnProgress,
    held_out_beside,
    make_tasks,
    write_tasks,
)
from astune.helper_model import HelperModel
from astune.launcher.companion import CompanionFlags
from astune.rollout import RolloutObserver
from astune.schema import Task, TaskReaderError
from astune.task_reader.data_reader import SUCCESS_RATE, material_of

_SHOWN = 20


def read(config: AstuneConfig, documents: Sequence[Path], seeds: Path | None) -> Material:
    """Read the documents or examples from which tasks are generated. Raises TaskReaderError if it cannot be read."""
    if seeds is not None and not seeds.is_file():
        raise TaskReaderError(f"there is no file {seeds}", hint="name a JSONL file of example tasks")
    return material_of(config, documents, seeds)


def require_outputs(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse, before anything is asked, an `out` whose files cannot be written or would replace an input. Raises
    ConfigError if one of them is a folder or an input, or the folder cannot be written."""
    for path in (out, held_out_beside(out), report_beside(out)):
        require_output(path, inputs)


async def make(config: AstuneConfig, material: Material, out: Path, on_progress: OnProgress) -> Made:
    """Generate tasks and write them: training tasks to `out`, validation tasks and the report beside it. Raises
    AstuneError if the helper model does not answer, no task was accepted, or a file cannot be written."""
    model = HelperModel(config.helper_model)
    made = await make_tasks(
        config.task_reader.data_generation,
        material,
        model,
        config.sandbox,
        on_progress,
        config.task_judge.reference_field,
    )
    write_tasks(out, made.training)
    write_tasks(held_out_beside(out), made.held_out)
    write_whole(report_beside(out), _report_html(made, out.name))
    return made


def report_beside(out: Path) -> Path:
    """The report that belongs to the file of tasks `out`."""
    return out.with_name(f"{out.stem}.report.html")


def with_difficulty(
    experiment: Experiment,
    tasks: Sequence[Task],
    tries: int,
    console: Console,
    observed: Callable[[int], AbstractContextManager[RolloutObserver]],
) -> list[Task]:
    """Return the tasks with `metadata.success_rate`: the fraction of `tries` episodes in which the experiment's model,
    workflow and judge succeed, at the temperature of training. Tasks that could not be measured are omitted. Raises
    AstuneError if something that the experiment needs is missing."""
    sampled = {"num_repeat": tries, "max_tasks": None, "temperature": experiment.config.rollout.temperature}
    config = changed(experiment.config, trainer={"validation": sampled})
    measured = replace(experiment, config=config)
    found = measure(measured, CompanionFlags(), console, observed, tasks)
    successes: dict[str, list[bool]] = defaultdict(list)
    for episode in found.episodes:
        successes[episode.task.task_id].append(episode.reward is not None and episode.reward.is_success)
    rates = {name: sum(each) / len(each) for name, each in successes.items()}
    return [
        replace(task, metadata=task.metadata | {SUCCESS_RATE: rates[task.task_id]})
        for task in tasks
        if task.task_id in rates
    ]


def _report_html(made: Made, name: str) -> str:
    """Counts, rejected tasks with reasons, and examples, on a page that opens from disk and loads nothing."""
    return page(name, "".join(_parts(made, name)))


def _parts(made: Made, name: str) -> Iterable[str]:
    total = len(made.training) + len(made.held_out)
    yield f"<h1>{escape(name)}</h1>"
    split = f"{len(made.training):,} training tasks, {len(made.held_out):,} validation tasks"
    yield f"<p>{total:,} tasks of {made.wanted:,} wanted: {split}.</p>"
    yield (
        f'<p class="faint">{made.usage.calls:,} answers of the helper model, {made.usage.cached:,} of them kept from '
        f"before; {made.usage.tokens:,} tokens, {made.usage.tokens / max(1, total):,.0f} a task.</p>"
    )
    yield "<h2>From drafts to tasks</h2>"
    yield table(["stage", "#came", "#kept", "", "taken out"], (_row(made, n) for n in range(len(made.stages))))
    if made.unread:
        yield "<h2>Not read</h2>"
        yield table(["file", "why"], ([escape(each.name), escape(each.reason)] for each in made.unread))
    yield "<h2>Taken out, by reason</h2>"
    for stage in made.stages:
        for reason, drafts in stage.examples.items():
            title = f"{escape(stage.name)}: {escape(reason)} ({stage.dropped[reason]:,})"
            yield f"<details><summary>{title}</summary>{''.join(map(_draft, drafts))}</details>"
    for title, tasks in (("To train on", made.training), ("Held out", made.held_out)):
        yield f"<h2>{title}: {min(_SHOWN, len(tasks))} of {len(tasks):,}</h2>"
        yield "".join(map(_task, tasks[:_SHOWN]))


def _row(made: Made, number: int) -> list[str]:
    stage = made.stages[number]
    most = max(each.came for each in made.stages) or 1
    why = "<br>".join(f"{n:,} x {escape(reason)}" for reason, n in stage.dropped.most_common())
    bar = f'<span class="bar" style="width:{100 * stage.kept / most:.1f}px"></span>'
    return [escape(stage.name), f"{stage.came:,}", f"{stage.kept:,}", bar, why]


def _draft(draft: Draft) -> str:
    return f"<p><b>{escape(draft.question)}</b><br>{escape(draft.answer)}</p>"


def _task(task: Task) -> str:
    known = {name: value for name, value in task.metadata.items() if name != ANSWER}
    return (
        f"<details><summary>{escape(task.main_query[:300])}</summary><p><b>{escape(str(task.metadata[ANSWER]))}</b></p>"
        f"<pre>{escape(json.dumps(known, indent=2, ensure_ascii=False))}</pre></details>"
    )
