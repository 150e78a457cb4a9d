"""The `astune rubrics` commands: learn what makes answers good from a few labels, and measure it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astune.cli._errors import RESUMES
from astune.cli._flags import Commands, DryRun, Set
from astune.cli._reported import reported

if TYPE_CHECKING:
    from rich.progress import TaskID

    from astune.config import AstuneConfig
    from astune.rubrics.learning import OnProgress

rubrics_app = Commands(
    help="Learn rubrics from a few labelled answers, for task_judge.judge_protocol: rubrics.", no_args_is_help=True
)

Conf = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FILE.yaml",
        help="Experiment with the settings of helper_model and rubrics; --set works without one.",
    ),
]


@rubrics_app.command(interrupted=RESUMES)
def learn(
    labelled: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LABELLED.jsonl]", help="Answers with scores or ranks; may be left out with --description."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.yaml", help="File to write the rubrics to.")] = Path(
        "rubrics.yaml"
    ),
    description: Annotated[
        str,
        typer.Option(
            "--description", metavar="TEXT", help="Description of the tasks, from which the model writes rubrics."
        ),
    ] = "",
    conf: Conf = None,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Propose rubrics from better and worse answers, test them on the labels, and keep a small set that explains them.

    The helper model's answers are cached: after an interruption, the same command resumes.
    """
    import asyncio

    from astune.app import rubrics
    from astune.app.console import Console
    from astune.config import load_config
    from astune.config.output_file import require_output
    from astune.rubrics import read_examples
    from astune.schema import ConfigError

    config = load_config(conf, overrides or [])
    require_output(out, [labelled] if labelled is not None else [])
    if labelled is None and not description:
        hint = 'name their file, or --description "what the tasks are"'
        raise ConfigError("there are no labelled answers", hint=hint)
    examples = read_examples(labelled, config.rubrics) if labelled is not None else []
    answers = sum(len(example.answers) for example in examples)
    Console().say(
        f"{answers} labelled answers to {len(examples)} queries" if examples else "from the description alone"
    )
    if dry_run is not None:
        Console().say(f"{asked_model(config)} would be asked, and {out} written")
        return 0
    with progress_bars() as on_progress:
        found, usage = asyncio.run(rubrics.learn(config, examples, description, on_progress))
    found.save(out)
    with reported(out.with_name(f"{out.stem}.report.html"), f"Rubrics in {out.name}") as console:
        for theme in found.themes:
            console.say(f"\n{theme.theme}")
            for rubric in theme.rubrics:
                console.say(f"  {rubric.weight:5.2f}  {rubric.text}")
        asked = f"{usage.calls:,} answers, {usage.cached:,} of them kept from before, {usage.tokens:,} tokens"
        console.say(f"\n{len(found.rubrics)} rubrics in {out}; {asked}")
    return 0


@rubrics_app.command(interrupted=RESUMES)
def check(
    file: Annotated[Path, typer.Argument(metavar="RUBRICS.yaml", help="Rubrics, learned or written by hand.")],
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED.jsonl", help="Labelled answers that the rubrics were not learned from.")
    ],
    conf: Conf = None,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Measure how well grades by rubrics agree with labels, compared with a judge without rubrics."""
    import asyncio

    from rich.table import Table

    from astune.app import rubrics
    from astune.app.console import Console
    from astune.config import load_config
    from astune.config.strict import changed
    from astune.rubrics import Rubrics, read_examples

    config = load_config(conf, overrides or [])
    mode = Rubrics.load(file).grader_mode
    config = changed(config, rubrics={"grader_mode": mode})
    examples = read_examples(labelled, config.rubrics)
    if dry_run is not None:
        Console().say(f"{asked_model(config)} would grade the answers to {len(examples)} queries twice")
        return 0
    with progress_bars() as on_progress:
        measured = asyncio.run(rubrics.measure(config, str(file), examples, on_progress))
    columns = ("judge", "pairs in the labels' order", "Kendall's tau", "tokens")
    table = Table(*columns, title=f"against {labelled.name}")
    for each in measured:
        found = each.agreement
        table.add_row(
            each.judge,
            _with_interval(found.accuracy, found.accuracy_interval),
            _with_interval(found.tau, found.tau_interval),
            f"{each.usage.tokens:,}",
        )
    with reported(file.with_name(f"{file.stem}.check.html"), f"{file.name} against {labelled.name}") as console:
        console.print(table)
        pairs = measured[0].agreement.pairs
        console.say(f"{pairs} pairs with different labels; a tie is half right; 95 % intervals")
    return 0


def asked_model(config: AstuneConfig) -> str:
    return f"the helper model at {config.helper_model.base_url or 'no address yet'}"


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


@contextmanager
def progress_bars() -> Iterator[OnProgress]:
    """A bar for each stage, and what moves them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        known: dict[str, TaskID] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in known:
                known[stage] = bars.add_task(stage, total=total)
            bars.update(known[stage], completed=done, total=total)

        yield on_progress
