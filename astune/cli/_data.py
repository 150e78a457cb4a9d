"""The `astune data` commands: tasks from documents, and tasks from a few examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from astune.cli._errors import RESUMES
from astune.cli._flags import Commands, DryRun, Set
from astune.cli._rubrics import Conf, asked_model, progress_bars

if TYPE_CHECKING:
    from rich.table import Table

    from astune.app.console import Console
    from astune.config import AstuneConfig
    from astune.data_generator import Made, Material

data_app = Commands(
    help="Generate verified tasks from documents or from a few examples, and measure their difficulty.",
    no_args_is_help=True,
)

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE.jsonl",
        help="File for the training tasks; held-out tasks and a report are written beside it.",
    ),
]
Num = Annotated[
    int | None,
    typer.Option(
        "--num",
        metavar="N",
        min=1,
        help="Number of tasks, held-out ones included; by default task_reader.data_generation.number.",
    ),
]


@data_app.command("from-docs", interrupted=RESUMES)
def from_docs(
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS...", help="Documents, or folders of documents.")],
    out: Out = Path("tasks.jsonl"),
    num: Num = None,
    conf: Conf = None,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Generate questions about documents, and keep those that are answered again from their passage.

    The helper model's answers are cached: after an interruption, the same command resumes and writes the same file.
    """
    return _make(paths, None, out, num, conf, overrides or [], dry_run is not None)


@data_app.command(interrupted=RESUMES)
def expand(
    seeds: Annotated[Path, typer.Argument(metavar="SEEDS.jsonl", help="Example tasks with their reference answers.")],
    out: Out = Path("tasks.jsonl"),
    num: Num = None,
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            "--docs", metavar="PATH", help="Generate half of the tasks from this document or folder; repeatable."
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="URL",
            help="Generate tasks by exploring the examples' environment: the URL of its service, or local.",
        ),
    ] = None,
    conf: Conf = None,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Generate variations of example tasks, and keep those whose answer checkers or repeated solving confirm.

    The helper model's answers are cached: after an interruption, the same command resumes and writes the same file.
    """
    explored = [] if env is None else [f"task_reader.data_generation.env_url={env}"]
    return _make(docs or [], seeds, out, num, conf, [*(overrides or []), *explored], dry_run is not None)


@data_app.command()
def measure(
    conf: Annotated[
        Path, typer.Option("--conf", metavar="FILE.yaml", help="Experiment whose model, workflow and judge are used.")
    ],
    tasks: Annotated[
        Path | None,
        typer.Argument(metavar="[TASKS.jsonl]", help="Tasks to measure; by default the experiment's training tasks."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.jsonl", help="File for the tasks that are kept.")] = Path(
        "measured.jsonl"
    ),
    tries: Annotated[int, typer.Option("--tries", metavar="K", min=1, help="Episodes per task.")] = 4,
    between: Annotated[
        tuple[float, float],
        typer.Option("--between", metavar="LOW HIGH", help="Keep only tasks with a success rate in this range."),
    ] = (0.0, 1.0),
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Measure how often the experiment's model succeeds in each task, and keep the tasks of suitable difficulty.

    A group of episodes that all succeed or all fail has no gradient: --between 0.1 0.9 removes such tasks. For
    task_reader.type: data_generation the rates are also stored with the tasks, for task_reader.curriculum.
    """
    from astune.app.console import Console
    from astune.app.data import SUCCESS_RATE, with_difficulty
    from astune.app.experiment import Experiment
    from astune.cli._evaluate import episodes_bar
    from astune.config.output_file import require_output
    from astune.data_generator import line_of, write_tasks
    from astune.schema import ConfigError
    from astune.task_reader import open_task_reader
    from astune.task_reader.data_reader import TaskReaderDataGeneration, tasks_in

    low, high = between
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"--between is {low:g} {high:g}", hint="two rates from 0 to 1, the lower one first")
    require_output(out, [tasks] if tasks is not None else [])
    experiment, console = Experiment.of(conf, overrides or []), Console()
    config = experiment.config
    reader = None
    if tasks is None and dry_run is not None:
        console.say(f"the experiment's training tasks would be measured, {tries} times each, and {out} written")
        return 0
    if tasks is None:
        reader = open_task_reader(config.task_reader, base_dir=conf.parent, experiment=config)
    found = reader.read().training if reader is not None else tasks_in(cast("Path", tasks), conf.parent)
    for task in found:
        line_of(task)  # raises where it could not be written afterwards
    if dry_run is not None:
        console.say(f"{len(found):,} tasks would be measured, {tries} times each, and {out} written")
        return 0
    measured = with_difficulty(experiment, found, tries, console, lambda n: episodes_bar(console, n))
    rates = [float(task.metadata[SUCCESS_RATE]) for task in measured]
    kept = [task for task, rate in zip(measured, rates, strict=True) if low <= rate <= high]
    write_tasks(out, kept)
    if isinstance(reader, TaskReaderDataGeneration):
        reader.keep_success_rates(measured)
    console.print(_rates_table(rates))
    console.say(f"{len(kept):,} of {len(found):,} tasks, {len(found) - len(measured):,} not measured   {out}")
    return 0


def _rates_table(rates: list[float]) -> Table:
    from rich.table import Table

    table = Table("success rate", "tasks", "")
    parts = [("0", [rate for rate in rates if rate == 0])]
    for n in range(4):
        low, high = n / 4, (n + 1) / 4
        parts.append((f"to {high:g}", [rate for rate in rates if low < rate <= high and rate < 1]))
    parts.append(("1", [rate for rate in rates if rate == 1]))
    for name, there in parts:
        table.add_row(name, f"{len(there):,}", "█" * round(40 * len(there) / max(1, len(rates))))
    return table


def _make(
    documents: list[Path],
    seeds: Path | None,
    out: Path,
    num: int | None,
    conf: Path | None,
    overrides: list[str],
    dry_run: bool,
) -> int:
    import asyncio

    from astune.app import data
    from astune.app.console import Console
    from astune.config import load_config

    number = [] if num is None else [f"task_reader.data_generation.number={num}"]
    config = load_config(conf, [*overrides, *number])
    data.require_outputs(out, [*documents, *([seeds] if seeds is not None else [])])
    material = data.read(config, documents, seeds)
    console = Console()
    _print_material(material, console)
    wanted = config.task_reader.data_generation.number
    if dry_run:
        console.say(f"{asked_model(config)} would be asked until there are {wanted} tasks, and {out} written")
        return 0
    with progress_bars() as on_progress:
        made = asyncio.run(data.make(config, material, out, on_progress))
    _print_made(made, out, config, console, held=bool(material.held_out))
    return 0


def _print_material(material: Material, console: Console) -> None:
    for each in material.unread:
        console.say(f"not read: {each.name}: {each.reason}")
    documents = {each.document for each in material.passages}
    if documents:
        console.say(f"{len(material.passages):,} passages of {len(documents):,} documents")
    if material.examples:
        console.say(f"{len(material.examples):,} examples")
    if material.worlds:
        console.say(f"{len(material.worlds):,} tasks whose environment is explored")


def _print_made(made: Made, out: Path, config: AstuneConfig, console: Console, *, held: bool) -> None:
    from rich.table import Table

    from astune.app.data import report_beside
    from astune.data_generator import held_out_beside

    table = Table("stage", "came", "kept", "taken out")
    for stage in made.stages:
        why = "\n".join(f"{n:,} x {reason}" for reason, n in stage.dropped.most_common())
        table.add_row(stage.name, f"{stage.came:,}", f"{stage.kept:,}", why)
    console.print(table)
    usage = made.usage
    console.say(f"{usage.calls:,} answers, {usage.cached:,} of them kept from before, {usage.tokens:,} tokens")
    if len(made.training) + len(made.held_out) < made.wanted:
        console.say(f"fewer than the {made.wanted:,} that were wanted: there was nothing left to ask")
    if config.task_reader.data_generation.held_out and not made.held_out:
        why = "none is of what is held out; make more" if held else "that takes more than one document or example"
        console.say(f"no task is held out: {why}")
    console.say(f"{len(made.training):,} training tasks   {out}")
    console.say(f"{len(made.held_out):,} held-out tasks   {held_out_beside(out)}")
    console.say(f"report   {report_beside(out)}")
