"""The `astune` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from astune.app.openmp import let_openmp_spin_briefly


def main() -> None:
    """The installed command, and what `python launcher.py` calls; ends the process with the exit status."""
    let_openmp_spin_briefly()
    from astune.cli._ending import bound_ending, refuse_exits
    from astune.cli._standard_streams import outlive_readers
    from astune.cli.app import run

    outlive_readers()
    refuse_exits()
    try:
        run()
    except SystemExit as end:
        bound_ending(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def beast_logger_go() -> None:
    """The log viewer under its older name; takes the arguments of `astune view`."""
    import sys

    from astune.cli.app import run

    run(["view", *sys.argv[1:]])
