"""`astune view`: the log viewer on a folder of runs, or a run's report as one file."""

from __future__ import annotations

import errno
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from html import escape
from pathlib import Path

from astune.app.console import Console
from astune.launcher.health import describe_listener
from astune.runs import RECORD_DIR, RunDirectory, resolve_run
from astune.schema import ConfigError, RunStoreError
from astune.serving.server import listen
from astune.viewer.server import Address, ViewerServer, fragment_of

TOKEN_VARIABLE = "ASTUNE_VIEW_TOKEN"


def view_runs(
    path: Path | None,
    host: str,
    port: int,
    *,
    store: Path,
    open_page: bool | None,
    episode_id: str | None = None,
) -> int:
    """Serve until Ctrl-C.

    Args:
        path: the record of all experiments, an experiment, a run or its `rollout`; None for `launcher_record` here,
            which need not be there yet.
        store: conversations of a served model, a file that need not be there yet.
        open_page: whether a browser is opened; None where it is likely to be seen.
        episode_id: the episode that the page opens with, of the run at `path` or the newest one there.
    """
    if path is not None and not path.is_dir():
        wrong = f"{path} is a file" if path.exists() else f"there is no folder {path}"
        raise RunStoreError(wrong, hint="name launcher_record, an experiment in it, a run, or its rollout folder")
    folder = path or RECORD_DIR
    if episode_id is not None:
        folder = resolve_run(path, record_dir=RECORD_DIR)
        with RunDirectory.open(folder).episodes() as episodes:
            episodes.row(episode_id)  # raises where there is none
    console = Console()

    token = os.environ.get(TOKEN_VARIABLE) or None

    def on_ready(address: Address) -> None:
        # A token of the user's own is not written into logs.
        address = address if episode_id is None else replace(address, fragment=fragment_of(episode_id))
        where = address.url if token is None else f"{address.page} with ?token= and the value of {TOKEN_VARIABLE}"
        console.say(f"log viewer of {folder}: {where}")
        if store.is_file():
            console.say(f"with the conversations in {store}")
        if open_page or (open_page is None and _has_screen()):
            webbrowser.open(until_end.enter_context(_way_to(address)))

    listening = _listen(host, port)
    with ExitStack() as until_end, suppress(KeyboardInterrupt):  # how one ends it
        ViewerServer(folder, host, token, on_ready, store=store).run(sockets=[listening])
    return 0


def export_report(path: Path | None, to: Path, episode_ids: Sequence[str]) -> int:
    """Write the report of a run into one file, which appears only when it is whole; first say which run it is."""
    from astune.viewer.export import write_report

    run = resolve_run(path, record_dir=RECORD_DIR)
    console = Console()
    console.say(_heading(run, path, to))
    n_bytes = write_report(run, to, episode_ids)
    episodes = "1 episode" if len(episode_ids) == 1 else f"{len(episode_ids)} episodes"
    console.say(f"{to}: {run.parent.name}/{run.name}, {episodes}, {n_bytes / 1e6:.1f} MB")
    return 0


def _heading(run: Path, path: Path | None, to: Path) -> str:
    """Name the run, and how to choose another one if `path` was not the run itself."""
    name = f"{run.parent.name}/{run.name}"
    if path is not None and any(each.resolve().is_relative_to(run) for each in (path, RECORD_DIR / path)):
        return f"report of the run {name}"
    return f"report of the newest run in {path or RECORD_DIR}, {name}; of another: astune view RUN --export {to}"


@contextmanager
def _way_to(address: Address) -> Iterator[str]:
    """Return the URL for the browser.

    All users of a machine see the arguments of a process: a token stands in a file that leads on to the page, in a
    folder that its user alone may enter.
    """
    if address.token is None:
        yield address.url
        return
    with tempfile.TemporaryDirectory(prefix="astune-view-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={escape(address.url)}">', encoding="utf-8")
        yield page.as_uri()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as cause:
        fix = f"choose another one with --port; it is held by {describe_listener(port)}"
        if cause.errno != errno.EADDRINUSE:
            fix = "name an address of this machine with --host, and a port from 1024 on with --port"
        raise ConfigError(f"{host}:{port} cannot be listened on: {cause.strerror}", hint=fix) from cause


def _has_screen() -> bool:
    here = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return bool(here) and sys.stdout.isatty() and "SSH_CONNECTION" not in os.environ
