"""Spin time of OpenMP's idle threads, which is read once, when torch is imported."""

from __future__ import annotations

import os


def let_openmp_spin_briefly() -> None:
    """Let idle OpenMP threads spin for some microseconds before they sleep, unless the environment sets this.

    Sleeping at once, or libgomp's defaults if several threads of a process compute, cost a third of the tokens per
    second on two cores. Spinning without a bound, two processes would slow each other twentyfold.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(OMP_WAIT_POLICY="active", GOMP_SPINCOUNT="3000")
