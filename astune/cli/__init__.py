"""The `astune` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os


def main() -> None:
    """The installed command, and what `python launcher.py` calls; ends the process with the exit status."""
    let_openmp_spin_briefly()
    from astune.cli._app import run

    run()


def beast_logger_go() -> None:
    """The log viewer under its older name; takes the arguments of `astune view`."""
    import sys

    from astune.cli._app import run

    run(["view", *sys.argv[1:]])


def let_openmp_spin_briefly() -> None:
    """Idle OpenMP threads spin for some microseconds before they sleep; read once, when torch is imported.

    Sleeping at once, or by libgomp's defaults where several threads of a process compute, costs a third of the
    tokens per second on two cores. Spinning without a bound, two processes would slow each other twentyfold.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(OMP_WAIT_POLICY="active", GOMP_SPINCOUNT="3000")
