"""Measurements against real peers, each with a ratio from one run; idle threads wait as the command's own do."""

from astune.cli import let_openmp_spin_briefly

let_openmp_spin_briefly()
