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
        typer.Argument(
            metavar="[MORE...]", help="Further runs, measured on the same held-out tasks; all are shown in one table."
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", metavar=" ", help="Write plots/report.html in the run's folder instead.")
    ] = False,
) -> int:
    """Print the report of a run: success before and after, the reward curve, the token accounting.

    For several runs it prints one table with success and its interval: at the start, with the best prompts of `astune
    optimize-prompt`, and after training.
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
    """Delete what is only needed to resume a run; its episodes, metrics and best model stay."""
    from astune.cli._past_runs import clean_run

    return clean_run(run, dry_run=dry_run is not None)


@run_commands.command()
def export(
    run: Run,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Target folder; it must not exist yet, or be empty.")],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="Policy to export, if the run has several; an adapter is merged into its model.",
        ),
    ] = None,
) -> int:
    """Copy the best model of a run, in Hugging Face format."""
    from astune.cli._past_runs import export_model

    return export_model(run, to, policy)


@run_commands.command("export-metrics")
def export_metrics(
    run: Run,
    to: Annotated[
        Literal["csv", "parquet"], typer.Option("--to", help="Format: csv, or parquet, which needs pyarrow.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write; by default metrics.csv or metrics.parquet."),
    ] = None,
) -> int:
    """Write the metrics of a run as a table: one row per step and split, one column per metric."""
    from astune.cli._export_metrics import export_metrics

    return export_metrics(run, to, out)


@run_commands.command()
def replay(
    run: Run,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            metavar=" ",
            help="Instead render every stored call again, and compare its tokens with the record.",
        ),
    ] = False,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            metavar=" ",
            help="Import a judge or algorithm from inside the run's folder without asking.",
        ),
    ] = False,
    overrides: Set = None,
) -> int:
    """Judge a run's stored episodes again and rebuild their timelines, without the model; print the differences."""
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
        typer.Option("--message", "-m", metavar="TEXT", help="Ask this question, print the answer, and exit."),
    ] = None,
) -> int:
    """Chat with the best model of a run."""
    from astune.cli._chat import chat_with

    return chat_with(run, message)


@run_commands.command()
def view(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="Folder of all runs, of one experiment or of one run; by default ./launcher_record.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="HOST", help="Address to listen on; if other machines can reach it, a token is required."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 uses a free one.")
    ] = 8181,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE.html", help="Write one run as a page into this file, and serve nothing."
        ),
    ] = None,
    episodes: Annotated[
        list[str] | None,
        typer.Option(
            "--episode",
            metavar="ID",
            help="Episode to open; with --export an episode to include, repeatable.",
        ),
    ] = None,
    store: Annotated[
        Path,
        typer.Option(
            "--store",
            metavar="FILE",
            help="Feedback store of `astune serve`, whose conversations are shown if it exists.",
        ),
    ] = DEFAULT_STORE,
    open_page: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open", metavar=" ", help="Open a browser or not; by default on a terminal with a display."
        ),
    ] = None,
) -> int:
    """Show runs in the browser: curves, episodes and every token, during training and afterwards."""
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
        str,
        typer.Argument(
            metavar="MODEL", help="Model: a RUN (its best model), a folder, a hub id, or builtin:smollm2-135m."
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 uses a free one.")
    ] = 8182,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            metavar="FILE",
            help="Store answers here, so that a repeated request gets the same answer after a restart; needs "
            "ASTUNE_GATEWAY_KEY.",
        ),
    ] = None,
    overrides: Set = None,
) -> int:
    """Serve a model through the API that agents have in training, to try an agent by hand; nothing is trained."""
    from astune.cli._gateway import serve_model

    return serve_model(model, port, answers, overrides or [])
