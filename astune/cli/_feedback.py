"""`astune serve`, which records feedback, and the `astune feedback` commands: import, show, export, forget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from astune.cli._flags import Commands, DryRun, Set

if TYPE_CHECKING:
    from astune.feedback import FeedbackStore, Masker

feedback_app = Commands(
    help="Import, count, export and delete conversations and the ratings that users gave them.", no_args_is_help=True
)

DEFAULT_STORE = Path("feedback.sqlite3")
Store = Annotated[Path, typer.Option("--store", metavar="FILE", help="SQLite file with conversations and ratings.")]
Mask = Annotated[
    list[str] | None,
    typer.Option(
        "--mask",
        metavar="NAME=REGEX",
        help="Replace what REGEX matches by [NAME]; NAME= switches a mask off; repeatable.",
    ),
]


@feedback_app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files with traces, or with ratings (.csv, .jsonl).")
    ],
    store: Store = DEFAULT_STORE,
    mask: Mask = None,
    dry_run: DryRun = None,
) -> int:
    """Import traces (AgentScope Studio's database, OTLP JSON, exports of Langfuse and MLflow) and ratings of them.

    Existing records are kept, so files may overlap. E-mail addresses, telephone numbers and keys are masked before
    anything is written. Records that cannot be read are counted and listed.
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
    """Count conversations and ratings by their source and kind."""
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
    to: Annotated[Path, typer.Option("--to", metavar="FILE.jsonl", help="File to write.")],
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
    """Write labelled answers, conversations, preference pairs or failed questions of a store as JSON lines."""
    from astune.app.console import Console
    from astune.app.feedback import exported
    from astune.config.output_file import require_output

    require_output(to, [store])
    n = exported(_opened(store), to, what)
    Console().say(f"{n:,} lines in {to}")
    return 0


@feedback_app.command()
def forget(
    user: Annotated[str, typer.Argument(metavar="USER", help="User id, as in the ratings and traces.")],
    flywheel: Annotated[
        Path | None,
        typer.Option(
            "--flywheel",
            metavar="FOLDER",
            help="Also delete what the turns of this flywheel made from the user's feedback: tasks, reports, "
            "measurements and runs. Decisions and promoted models stay.",
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
) -> int:
    """Delete a user's conversations, all ratings of them, and the user's own ratings."""
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
        typer.Argument(
            metavar="MODEL...", help="A RUN (its best model), a folder or a hub id; several models share the sessions."
        ),
    ],
    share: Annotated[
        list[float] | None,
        typer.Option(
            "--share", metavar="S", help="Share of the sessions for each model, in the same order; equal by default."
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Client with a key of its own, which ASTUNE_KEY_NAME may set; repeatable; one by default.",
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
    mask: Mask = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", min=1, metavar="N", help="Requests per minute and client; no limit by default."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 uses a free one.")
    ] = 8182,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Serve models to users through OpenAI's and Anthropic's APIs; record every conversation, and feedback on it."""
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
    """Raises ConfigError if one of them is no NAME=REGEX."""
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
