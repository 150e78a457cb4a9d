"""`astune serve`, which records feedback, and the `astune feedback` commands: import, show, export, forget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from astune.cli._flags import Commands, DryRun, Set

if TYPE_CHECKING:
    from astune.feedback import FeedbackStore, Masker

feedback_app = Commands(help="Conversations and what users thought of them, for training.", no_args_is_help=True)

DEFAULT_STORE = Path("feedback.sqlite3")
Store = Annotated[Path, typer.Option("--store", metavar="FILE", help="The SQLite file that holds the feedback.")]
Mask = Annotated[
    list[str] | None,
    typer.Option("--mask", metavar="NAME=REGEX", help="Mask this as well, as [NAME]; NAME= switches one off."),
]


@feedback_app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces, or ratings in .csv or .jsonl.")],
    store: Store = DEFAULT_STORE,
    mask: Mask = None,
    dry_run: DryRun = None,
) -> int:
    """Take in traces (AgentScope Studio's database, OTLP JSON, exports of Langfuse and MLflow) and ratings of them.

    What is there already is left alone, so files may overlap. E-mail addresses, telephone numbers and keys are masked
    before anything is written. Records that cannot be read are counted and named.
    """
    from astune.app.console import Console
    from astune.app.feedback import take_in

    console = Console()
    taken = take_in(files, None if dry_run is not None else store, masker(mask or []))
    for line in taken.lines():
        console.say(line)
    return 0


@feedback_app.command()
def show(store: Store = DEFAULT_STORE) -> int:
    """Count what a store holds, by source and by kind of opinion."""
    from rich.table import Table

    from astune.app.console import Console
    from astune.app.feedback import counted

    counts = counted(_opened(store))
    table = Table("what", "from", "number", title=str(store))
    for (what, source), number in sorted(counts.items()):
        table.add_row(what, source, f"{number:,}")
    Console().print(table)
    return 0


@feedback_app.command()
def export(
    to: Annotated[Path, typer.Option("--to", metavar="FILE.jsonl", help="The file to write.")],
    what: Annotated[
        Literal["labelled", "accepted", "preferences", "failures"],
        typer.Option(
            "--what",
            help="labelled: answers with scores, for `astune rubrics learn`. accepted: conversations that end with the "
            "accepted answer. preferences: corrected answers, each with the one that it replaces. failures: questions "
            "whose answers were rated badly, as tasks.",
        ),
    ] = "labelled",
    store: Store = DEFAULT_STORE,
) -> int:
    """Write what a store holds as JSON lines, for other commands and other tools."""
    from astune.app.console import Console
    from astune.app.feedback import exported
    from astune.config.output_file import require_output

    require_output(to, [store])
    n = exported(_opened(store), to, what)
    Console().say(f"{n:,} lines in {to}")
    return 0


@feedback_app.command()
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user's id, as ratings and traces have it.")],
    flywheel: Annotated[
        Path | None,
        typer.Option(
            "--flywheel",
            metavar="FOLDER",
            help="Delete what turns of this flywheel made of them as well: tasks, reports, measurements and runs. "
            "Decisions and promoted models stay.",
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
) -> int:
    """Delete all that belongs to a user: conversations, ratings of them, and the user's own ratings."""
    from astune.app.console import Console

    opened, console = _opened(store), Console()
    if flywheel is not None:
        from astune.app.flywheel_forgetting import forget_turns

        turns = forget_turns(flywheel, opened.digests_of(user))
        console.say(f"deleted what {len(turns):,} turns of {flywheel} made of them")
    interactions, ratings = opened.forget(user)
    console.say(f"{interactions:,} conversations and {ratings:,} ratings of the user are deleted from {store}")
    console.say("tasks are read from the store and are without them from now on; exported files are yours to delete")
    return 0


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="A RUN, a folder, a hub id; several share the sessions."),
    ],
    share: Annotated[
        list[float] | None,
        typer.Option("--share", metavar="S", help="The share of sessions of each model, in their order."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A key for this client; ASTUNE_KEY_NAME may hold it."),
    ] = None,
    store: Store = DEFAULT_STORE,
    mask: Mask = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", min=1, metavar="N", help="Requests a minute that each client may send."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8182,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Serve models to people in three dialects, keep every conversation, and take feedback on them."""
    from astune.cli._serve import serve as serve_models

    return serve_models(
        models,
        shares=share or [],
        clients=client or [],
        store=store,
        host=host,
        port=port,
        per_minute=rate,
        masker=masker(mask or []),
        overrides=overrides or [],
        dry_run=dry_run is not None,
    )


def masker(given: list[str]) -> Masker:
    """
    Raises:
        ConfigError: one of them is no NAME=REGEX.
    """
    from astune.feedback import Masker
    from astune.schema import ConfigError

    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise ConfigError(f"--mask {wrong[0]!r} has no '='", hint="write --mask NAME=REGEX")
    return Masker(dict(each.split("=", 1) for each in given))


def _opened(path: Path) -> FeedbackStore:
    from astune.feedback import FeedbackStore
    from astune.schema import RunStoreError

    if not path.is_file():
        raise RunStoreError(f"there is no {path}", hint="`astune feedback import` makes it, or --store names another")
    return FeedbackStore(path)
