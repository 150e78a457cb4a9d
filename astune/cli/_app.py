"""The commands and their flags. What they do is in the modules that they import when they are called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from astune.cli._check import check_app
from astune.cli._data import data_app
from astune.cli._errors import exit_with
from astune.cli._feedback import feedback_app, serve
from astune.cli._flags import Commands, DryRun, Set, With, WithAppworld, WithRay
from astune.cli._rubrics import rubrics_app

NEWEST = "newest"
"""Value of a bare `--resume`: the experiment's newest run."""
SHORT = "short"
"""Value of a bare `--dry-run`: the configuration of verl or Trinity is left out."""

app = Commands(
    name="astune",
    help="Train the language model behind your agent by reinforcement learning.",
    epilog="A first try: [bold]astune demo[/]. What a key means: [bold]astune config explain KEY[/].",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a defect of ours prints everything, as Python does
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = Commands(help="Ask about the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(check_app, name="check")
app.add_typer(data_app, name="data")
app.add_typer(rubrics_app, name="rubrics")
app.add_typer(feedback_app, name="feedback")
app.command()(serve)

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or an experiment's for its newest run.")]
Kill = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--kill",
        metavar='"python|ray|vllm"',
        help="First end processes of earlier runs that match: only what astune started. Alone, it does nothing else.",
    ),
]
Plan = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--dry-run",
        metavar="[=full]",
        help="Print the plan and the resolved configuration, and start nothing; --dry-run=full adds the whole "
        "configuration of verl or Trinity.",
    ),
]


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with its exit status."""
    app(args=with_values(sys.argv[1:] if arguments is None else list(arguments)), prog_name="astune")


def with_values(arguments: Sequence[str]) -> list[str]:
    """`--resume` and `--dry-run` may stand without a value, which the parser cannot express: it gets what is meant."""
    written: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":  # an agent's own command follows
            return [*written, *arguments[position:]]
        follows = arguments[position + 1] if position + 1 < len(arguments) else "-"
        written.append(f"{argument}={SHORT}" if argument == "--dry-run" else argument)
        if argument == "--resume" and follows.startswith("-"):
            written.append(NEWEST)
    return written


@app.callback()
def root(
    context: typer.Context,
    conf: Annotated[Optional[Path], typer.Option("--conf", metavar="FILE.yaml", help="The experiment.")] = None,  # noqa: UP045
    backbone: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--backbone",
            metavar="NAME",
            help="Who trains; overrides astune.backbone: local, verl or trinity on a Ray cluster, or debug, which runs "
            "a few episodes only.",
        ),
    ] = None,
    resume: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--resume",
            metavar="[RUN]",
            help="Resume a run; without RUN, the newest one: of --conf's experiment, or of all.",
        ),
    ] = None,
    plan: Plan = None,
    overrides: Set = None,
    breakpoints: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--db", metavar="'TAG1|TAG2'", help="Arm breakpoints: bp('TAG1') in your code stops then."),
    ] = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
    with_logview: Annotated[
        bool, typer.Option("--with-logview", metavar=" ", help="Also start the log viewer on this run.")
    ] = False,
    kill: Kill = None,
    version: Annotated[bool, typer.Option("--version", metavar=" ", help="Print the version.")] = False,
) -> None:
    flags = {
        "--conf": conf,
        "--backbone": backbone,
        "--resume": resume,
        "--dry-run": plan,
        "--set": overrides,
        "--db": breakpoints,
        "--with": with_,
        "--with-ray": with_ray,
        "--with-appworld": with_appworld,
        "--with-logview": with_logview,
        "--kill": kill is not None,
    }
    given = [flag for flag, value in flags.items() if value]
    if context.invoked_subcommand is not None:
        if given:
            raise typer.BadParameter(f"{given[0]} does not go before the command {context.invoked_subcommand}")
        return
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"astune {version_of('astune')}")
        return
    if not given:
        typer.echo(context.get_help())
        return

    def work() -> int:
        if kill is not None:
            from astune.cli._kill import kill_processes

            status = kill_processes(kill, dry_run=plan is not None)
            if status or set(given) <= {"--kill", "--dry-run"}:
                return status
        from astune.launcher.companion import CompanionFlags

        companions = CompanionFlags(tuple(with_ or ()), with_ray, with_appworld, with_logview)
        if companions and not ({*given} & {"--conf", "--backbone", "--resume", "--db"}):
            from astune.cli._services import keep_services

            return keep_services(companions, overrides or [], dry_run=plan is not None)
        from astune.cli._train import Request, train_or_plan

        if breakpoints is not None:
            from astune.debug import arm

            arm(breakpoints)
        request = Request(
            conf,
            _with_backbone(overrides, backbone),
            resume=resume is not None,
            run=Path(resume) if resume and resume != NEWEST else None,
            plan=_plan_of(plan),
            companions=companions,
        )
        return train_or_plan(request)

    exit_with(work)


@app.command()
def train(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The agent: a program in any language, run once a task."),
    ],
    tasks: Annotated[Path, typer.Option("--tasks", metavar="FILE.jsonl", help="The tasks to train on.")],
    judge: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--judge",
            metavar="REF",
            help="The reward: file.py, file.py->Class or module->Class. Without one the program's own reward counts.",
        ),
    ] = None,
    validation: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--validation", metavar="FILE.jsonl", help="Held-out tasks, tested before, during and after."),
    ] = None,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", metavar="MODEL", help="A local folder, a hub id, or builtin:smollm2-135m."),
    ] = None,
    backbone: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--backbone", metavar="NAME", help="local, debug, verl or trinity."),
    ] = None,
    plan: Plan = None,
    overrides: Set = None,
) -> None:
    """Train the model behind any program that speaks OpenAI's API: astune train --tasks T --judge J -- COMMAND."""

    def work() -> int:
        from astune.cli._program import experiment_of
        from astune.cli._train import Request, train_or_plan

        values = experiment_of(command, tasks=tasks, judge=judge, validation=validation, model=model)
        request = Request(None, _with_backbone(overrides, backbone), plan=_plan_of(plan), values=values)
        return train_or_plan(request)

    exit_with(work)


@app.command()
def demo(plan: Plan = None, overrides: Set = None) -> None:
    """A small real model learns to use a calculator, in a few minutes without a GPU."""

    def work() -> int:
        from astune.cli._train import Request, train_or_plan
        from astune.config.tutorials import tutorial_file

        conf = tutorial_file("example_calculator/calculator.yaml")
        return train_or_plan(Request(conf, overrides or [], plan=_plan_of(plan)))

    exit_with(work)


@app.command()
def report(
    run: Run,
    html: Annotated[
        bool, typer.Option("--html", metavar=" ", help="Write it as one page, plots/report.html in the run's folder.")
    ] = False,
) -> None:
    """Print the report of a run again: before and after, the reward curve, the token balance."""

    def work() -> int:
        from astune.cli._past_runs import show_report, write_report_page

        return write_report_page(run) if html else show_report(run)

    exit_with(work)


@app.command()
def clean(run: Run, dry_run: DryRun = None) -> None:
    """Remove what only resuming a run needs; its episodes, metrics and best model stay."""

    def work() -> int:
        from astune.cli._past_runs import clean_run

        return clean_run(run, dry_run=dry_run is not None)

    exit_with(work)


@app.command()
def export(
    run: Run,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A folder that does not exist yet, or is empty.")],
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Of a run with several: merged into its model.")
    ] = None,
) -> None:
    """Copy the best model of a run, in Hugging Face format."""

    def work() -> int:
        from astune.cli._past_runs import export_model

        return export_model(run, to, policy)

    exit_with(work)


@app.command("export-metrics")
def export_metrics(
    run: Run,
    to: Annotated[Literal["csv", "parquet"], typer.Option("--to", help="The format of the table: csv or parquet.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE", help="Where to write it; metrics.csv or metrics.parquet by default."),
    ] = None,
) -> None:
    """Write the metrics of a run as a table: one row a step and split, one column a metric."""

    def work() -> int:
        from astune.cli._export_metrics import export_metrics

        return export_metrics(run, to, out)

    exit_with(work)


@app.command()
def replay(
    run: Run,
    check: Annotated[
        bool, typer.Option("--check", metavar=" ", help="Render every stored call again and compare its tokens.")
    ] = False,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            metavar=" ",
            help="Import the judge or algorithm also where it lies inside of the run's folder, without asking.",
        ),
    ] = False,
    overrides: Set = None,
) -> None:
    """Judge and merge the stored episodes of a run again, without its model, and show what comes out differently."""

    def work() -> int:
        if check:
            from astune.cli._replay import check_run

            return check_run(run)
        from astune.cli._replay_judged import replay_run

        return replay_run(run, overrides or [], trust_code=trust_code)

    exit_with(work)


@app.command()
def chat(
    run: Run,
    message: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--message", "-m", help="Ask this one question and print the answer."),
    ] = None,
) -> None:
    """Talk to the best model of a run."""

    def work() -> int:
        from astune.cli._chat import chat_with

        return chat_with(run, message)

    exit_with(work)


@app.command()
def gateway(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A local folder, a hub id, builtin:smollm2-135m, or a RUN.")
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8182,
    answers: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--answers",
            metavar="FILE",
            help="Keep answers here: a request that is sent again after a restart gets the one that it got before.",
        ),
    ] = None,
    overrides: Set = None,
) -> None:
    """Serve a model to agents as training does, for trying one with curl or an SDK; nothing is trained."""

    def work() -> int:
        from astune.cli._gateway import serve_model

        return serve_model(model, port, answers, overrides or [])

    exit_with(work)


@app.command("optimize-prompt")
def optimize_prompt(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose rollout.params hold prompts.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> None:
    """Improve a workflow's prompts by reflection, with the weights as they are, and measure before and after."""

    def work() -> int:
        from astune.cli._optimize_prompt import search_or_plan
        from astune.launcher.companion import CompanionFlags

        companions = CompanionFlags(tuple(with_ or ()), False, False)
        return search_or_plan(conf, overrides or [], companions, plan=_plan_of(plan))

    exit_with(work)


@app.command()
def sft(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose tasks bring answers to learn.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> None:
    """Learn the answers that tasks bring, by supervised fine-tuning; held-out tasks are played and measured as ever.

    A task brings metadata.messages, a whole conversation, or a reference answer. Go on with `astune --resume`.
    """

    def work() -> int:
        from astune.cli._train import Request, train_or_plan
        from astune.launcher.companion import CompanionFlags

        companions = CompanionFlags(tuple(with_ or ()), False, False)
        over = {"trainer": {"algorithm": "sft"}}
        request = Request(conf, overrides or [], plan=_plan_of(plan), companions=companions, over=over)
        return train_or_plan(request)

    exit_with(work)


@app.command()
def dpo(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose tasks bring pairs of answers.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> None:
    """Learn to prefer one answer to another, by direct preference optimisation; held-out tasks are played as ever.

    A task brings metadata.chosen, or a reference answer, and metadata.rejected. Go on with `astune --resume`.
    """

    def work() -> int:
        from astune.cli._train import Request, train_or_plan
        from astune.launcher.companion import CompanionFlags

        companions = CompanionFlags(tuple(with_ or ()), False, False)
        over = {"trainer": {"algorithm": "dpo"}, "task_reader": {"feedback_tracing": {"only_pairs": True}}}
        request = Request(conf, overrides or [], plan=_plan_of(plan), companions=companions, over=over)
        return train_or_plan(request)

    exit_with(work)


@app.command()
def flywheel(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[rollback] CONF", help="The experiment; after `rollback`, return to the model before."),
    ],
    overrides: Set = None,
    dry_run: DryRun = None,
) -> None:
    """Learn from new feedback, and promote the model only when it is proven better; or roll a promotion back.

    A turn imports, filters, trains, evaluates old and new, decides and reports. After a kill the same command goes on.
    """

    def work() -> int:
        from astune.cli._flywheel import turn_flywheel

        return turn_flywheel(words, overrides or [], dry_run=dry_run is not None)

    exit_with(work)


@app.command()
def worker(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The agent: a program in any language, run once an episode."),
    ],
    connect: Annotated[str, typer.Option("--connect", metavar="URL", help="The run's address: http://trainer:8183.")],
    token: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--token", metavar="TOKEN", help="The run's token; better in ASTUNE_WORKER_TOKEN, where no process sees it."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N", help="Episodes at once.")] = 1,
    memory_mb: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--memory-mb", min=1, metavar="MB", help="Memory that one program may hold, in MiB."),
    ] = None,
) -> None:
    """Play episodes of a run on another machine: its rollout.workflow.workers says where."""

    def work() -> int:
        from astune.cli._worker import work_for

        return work_for(connect, token, command, parallel, memory_mb)

    exit_with(work)


@app.command("eval")
def evaluate(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment to take held-out tasks from.")],
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", metavar="PATH", help="A model as in astune.model.path, which it replaces, or a RUN."),
    ] = None,
    overrides: Set = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
) -> None:
    """Measure a model on the held-out tasks, with 95 % confidence intervals; nothing is trained."""

    def work() -> int:
        from astune.cli._evaluate import evaluate_model
        from astune.launcher.companion import CompanionFlags

        flags = CompanionFlags(tuple(with_ or ()), with_ray, with_appworld)
        return evaluate_model(conf, model, overrides or [], flags)

    exit_with(work)


@app.command()
def view(
    path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="[PATH]",
            help="launcher_record, an experiment in it, a run or its rollout folder; ./launcher_record by default.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; a token is required where others can reach it.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8181,
    export: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--export", metavar="FILE.html", help="Serve nothing: write a run's report into one file."),
    ] = None,
    episodes: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--episode",
            metavar="ID",
            help="The episode that the page opens with; with --export one that the report holds, repeatable.",
        ),
    ] = None,
    open_page: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--open/--no-open", metavar=" ", help="Open a browser; by default where there is a screen."),
    ] = None,
) -> None:
    """See everything that runs recorded: dashboards, episodes, every token; live or long afterwards."""
    if export is None and len(episodes or ()) > 1:
        raise typer.BadParameter("several --episode go with --export")

    def work() -> int:
        from astune.cli._view import export_report, view_runs

        if export is not None:
            return export_report(path, export, episodes or [])
        return view_runs(path, host, port, open_page=open_page, episode_id=episodes[0] if episodes else None)

    exit_with(work)


@app.command()
def doctor(
    conf: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--conf", metavar="FILE.yaml", help="Also look at what this experiment needs."),
    ] = None,
    backbone: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--backbone", metavar="NAME", help="Check the packages of this backbone, where --conf names none."
        ),
    ] = None,
    overrides: Set = None,
) -> None:
    """Look at this machine and environment, and print the line that fixes what is wrong."""

    def work() -> int:
        from astune.cli._doctor import examine

        return examine(conf, backbone, overrides or [])

    exit_with(work)


@config_app.command()
def explain(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A dotted key or a section; none lists the sections.")
    ] = "",
) -> None:
    """Describe a key: its type, default, allowed range and reason; a section lists its keys."""
    exit_with(_explaining(key))


def _explaining(key: str) -> Callable[[], int]:
    def work() -> int:
        from astune.config import explain as explain_key

        typer.echo(explain_key(key))
        return 0

    return work


def _plan_of(value: str | None) -> Literal["short", "full"] | None:
    if value in (None, "short", "full"):
        return value
    from astune.schema import ConfigError

    raise ConfigError(f"--dry-run={value} is unknown", hint="write --dry-run, or --dry-run=full")


def _with_backbone(overrides: list[str] | None, backbone: str | None) -> list[str]:
    return [*(overrides or []), *([f"backbone={backbone}"] if backbone else [])]
