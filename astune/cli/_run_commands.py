"""Commands that show or use what a run left: report, clean, export, export-metrics, replay, chat, view, gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from astune.cli._feedback import DEFAULT_STORE
from astune.cli._flags import Commands, DryRun, Run, Set

run_commands = Commands("Recorded runs")


@run_commands.command()
def report(
    run: Run,
    beside: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MORE...]", help="Further runs: one table of all, on the same held-out tasks."),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", metavar=" ", help="Write it as one page, plots/report.html in the run's folder.")
    ] = False,
) -> int:
    """Print the report of a run again: before and after, the reward curve, the token balance.

    Of several runs, of which one may be a search for prompts, it is one table: start, best prompts, trained, trained
    from the best prompts, each with an interval.
    """
    from astune.cli._past_runs import show_report, write_report_page
    from astune.cli._report_beside import show_beside
    from astune.schema import ConfigError

    if beside and html:
        raise ConfigError("--html is the page of one run", hint="leave it out, or name one run")
    if beside:
        return show_beside([run, *beside])
    return write_report_page(run) if html else show_report(run)


@run_commands.command()
def clean(run: Run, dry_run: DryRun = None) -> int:
    """Remove what only resuming a run needs; its episodes, metrics and best model stay."""
    from astune.cli._past_runs import clean_run

    return clean_run(run, dry_run=dry_run is not None)


@run_commands.command()
def export(
    run: Run,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A folder that does not exist yet, or is empty.")],
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="NAME", help="Of a run with several: merged into its model.")
    ] = None,
) -> int:
    """Copy the best model of a run, in Hugging Face format."""
    from astune.cli._past_runs import export_model

    return export_model(run, to, policy)


@run_commands.command("export-metrics")
def export_metrics(
    run: Run,
    to: Annotated[Literal["csv", "parquet"], typer.Option("--to", help="The format of the table: csv or parquet.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write it; metrics.csv or metrics.parquet by default."),
    ] = None,
) -> int:
    """Write the metrics of a run as a table: one row a step and split, one column a metric."""
    from astune.cli._export_metrics import export_metrics

    return export_metrics(run, to, out)


@run_commands.command()
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
) -> int:
    """Judge and merge the stored episodes of a run again, without its model, and show what comes out differently."""
    if check:
        from astune.cli._replay import check_run

        return check_run(run)
    from astune.cli._replay_judged import replay_run

    return replay_run(run, overrides or [], trust_code=trust_code)


@run_commands.command()
def chat(
    run: Run,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", help="Ask this one question and print the answer."),
    ] = None,
) -> int:
    """Talk to the best model of a run."""
    from astune.cli._chat import chat_with

    return chat_with(run, message)


@run_commands.command()
def view(
    path: Annotated[
        Path | None,
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
        Path | None,
        typer.Option("--export", metavar="FILE.html", help="Serve nothing: write a run's report into one file."),
    ] = None,
    episodes: Annotated[
        list[str] | None,
        typer.Option(
            "--episode",
            metavar="ID",
            help="The episode that the page opens with; with --export one that the report holds, repeatable.",
        ),
    ] = None,
    store: Annotated[
        Path,
        typer.Option(
            "--store", metavar="FILE", help="Conversations of `astune serve`, which are shown where it is there."
        ),
    ] = DEFAULT_STORE,
    open_page: Annotated[
        bool | None,
        typer.Option("--open/--no-open", metavar=" ", help="Open a browser; by default where there is a screen."),
    ] = None,
) -> int:
    """Show everything that runs recorded: dashboards, episodes, every token; live or long afterwards."""
    if export is None and len(episodes or ()) > 1:
        raise typer.BadParameter("several --episode go with --export")

    from astune.cli._view import export_report, view_runs

    if export is not None:
        return export_report(path, export, episodes or [])
    first = episodes[0] if episodes else None
    return view_runs(path, host, port, store=store, open_page=open_page, episode_id=first)


@run_commands.command()
def gateway(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A local folder, a hub id, builtin:smollm2-135m, or a RUN.")
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8182,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="Keep answers here: a request that is sent again after a restart gets the one that it got before.",
        ),
    ] = None,
    overrides: Set = None,
) -> int:
    """Serve a model to agents as training does, for trying one with curl or an SDK; nothing is trained."""
    from astune.cli._gateway import serve_model

    return serve_model(model, port, answers, overrides or [])
