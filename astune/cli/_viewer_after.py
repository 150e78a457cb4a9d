"""End of a debug run with `--with-logview`: the viewer until Ctrl-C, or the command that opens it later."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path

from astune.app.beside import Ready
from astune.app.console import Console
from astune.app.interrupts import until_interrupted
from astune.launcher.companion import LOGVIEW_PORT
from astune.viewer.server import fragment_of


def keep_viewer(ready: Ready, console: Console, run: Path, episode_id: str) -> None:
    """On a terminal, keep the viewer until Ctrl-C; elsewhere the last line is the command that opens the episode."""
    if not (console.is_terminal and sys.stdin.isatty()):
        console.say(f"astune view {shlex.quote(str(run))} --episode {shlex.quote(episode_id)}")
        return
    fragment = fragment_of(episode_id, f"{run.parent.name}/{run.name}")
    page = f"http://127.0.0.1:{LOGVIEW_PORT}/{fragment}"
    if "logview" not in ready.companions.names:  # one that ran before stays
        console.say(f"log viewer: {page}")
        return
    console.say(f"log viewer until Ctrl-C: {page}")
    with suppress(KeyboardInterrupt):
        ready.run(until_interrupted())
