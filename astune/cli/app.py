"""The commands and their flags. Each imports the module that does the work when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from astune.cli._check import check_app
from astune.cli._data import data_app
from astune.cli._errors import exit_with
from astune.cli._feedback import feedback_app, serve
from astune.cli._flags import Commands, Plan, Set, With, WithAppworld, WithRay, plan_of, with_backbone
from astune.cli._rubrics import rubrics_app
from astune.cli._run_commands import run_commands
from astune.cli._training_commands import training_commands

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
config_app = Commands(help="Explain the configuration.", no_args_is_help=True)
data_commands = Commands("Data and feedback")
data_commands.command()(serve)
setup_commands = Commands("Setup")
for commands in (training_commands, run_commands, data_commands, setup_commands):
    app.add_typer(commands)
for name, commands in (("data", data_app), ("rubrics", rubrics_app), ("feedback", feedback_app)):
    app.add_typer(commands, name=name, rich_help_panel="Data and feedback")
for name, commands in (("check", check_app), ("config", config_app)):
    app.add_typer(commands, name=name, rich_help_panel="Setup")

Kill = Annotated[
    str | None,
    typer.Option(
        "--kill",
        metavar='"python|ray|vllm"',
        help="End processes that earlier runs of astune started and whose command line has one of these words; then "
        "start the run, if --conf is given.",
    ),
]


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with its exit status."""
    app(args=with_values(sys.argv[1:] if arguments is None else list(arguments)), prog_name="astune")


def with_values(arguments: Sequence[str]) -> list[str]:
    """Give `--resume` and `--dry-run` their default values where they have none, which the parser cannot express."""
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
    conf: Annotated[Path | None, typer.Option("--conf", metavar="FILE.yaml", help="Experiment to train.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            metavar="NAME",
            help="Trainer, in place of the experiment's: local (this process), debug (runs a few episodes, trains "
            "nothing), verl or trinity (a Ray cluster), or a class of your own.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[RUN]",
            help="Continue a training run from its newest checkpoint; without RUN the newest run of --conf's "
            "experiment, or of all.",
        ),
    ] = None,
    plan: Plan = None,
    overrides: Set = None,
    breakpoints: Annotated[
        str | None,
        typer.Option("--db", metavar="'TAG1|TAG2'", help="Enable breakpoints in your code, such as bp('TAG1')."),
    ] = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
    with_logview: Annotated[
        bool, typer.Option("--with-logview", metavar=" ", help="Start the log viewer, at http://127.0.0.1:8181.")
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
    if resume == "":
        raise typer.BadParameter("--resume is empty; leave its value out for the newest run")
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
            with_backbone(overrides, backbone),
            resume=resume is not None,
            run=Path(resume) if resume and resume != NEWEST else None,
            plan=plan_of(plan),
            companions=companions,
        )
        return train_or_plan(request)

    exit_with(work)


@setup_commands.command()
def doctor(
    conf: Annotated[
        Path | None,
        typer.Option("--conf", metavar="FILE.yaml", help="Also check what this experiment needs."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone", metavar="NAME", help="Backbone whose packages are checked; by default that of --conf."
        ),
    ] = None,
    overrides: Set = None,
) -> int:
    """Check this machine and environment, and print how to fix each problem."""
    from astune.cli._doctor import examine

    return examine(conf, backbone, overrides or [])


@config_app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="[KEY]", help="A key such as trainer.optim.lr, or a section; without it all sections are listed."
        ),
    ] = "",
) -> int:
    """Print the type, default, allowed range and meaning of a key; of a section, its keys."""
    from astune.config import explain as explain_key

    typer.echo(explain_key(key))
    return 0
