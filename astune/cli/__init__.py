"""The `astune` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations


def main() -> None:
    """The installed command, and what `python launcher.py` calls; ends the process with the exit status."""
    from astune.cli._app import run

    run()
