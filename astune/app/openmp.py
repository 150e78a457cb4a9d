"""How long OpenMP's idle threads spin, which is read once, when torch is imported."""

from __future__ import annotations

import os


def let_openmp_spin_briefly() -> None:
    """Have idle OpenMP threads spin for some microseconds before they sleep, unless the environment says otherwise.

    Sleeping at once, or by libgomp's defaults where several threads of a process compute, costs a third of the
    tokens per second on two cores. Spinning without a bound, two processes would slow each other twentyfold.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(OMP_WAIT_POLICY="active", GOMP_SPINCOUNT="3000")
