"""`astune flywheel`: a turn from feedback to a decision, and back to the model before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astune.app.console import Console
from astune.app.flywheel import Flywheel
from astune.schema import ConfigError

_ROLLBACK = "rollback"


def turn_flywheel(words: Sequence[str], overrides: Sequence[str], *, dry_run: bool) -> int:
    """Do what `[rollback] CONF` says; returns the exit status. Raises ConfigError if the words are others."""
    back = len(words) == 2 and words[0] == _ROLLBACK
    if len(words) != 1 + back or (words[0] == _ROLLBACK and not back):
        raise ConfigError(
            f"astune flywheel {' '.join(words)}: expected one experiment",
            hint="astune flywheel CONF, or astune flywheel rollback CONF",
        )
    console = Console()
    flywheel = Flywheel(Path(words[-1]), overrides, console, console.say)
    if dry_run:
        flywheel.dry_run()
    elif back:
        entry = flywheel.roll_back()
        console.say(f"rolled back: {entry.previous} -> {entry.model} (turn {entry.turn})")
    elif flywheel.turn().turn is None:
        console.say(f"nothing is new since the last turn: {flywheel.history.current} stays")
    return 0
