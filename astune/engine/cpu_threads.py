"""OpenMP's helper threads, of which each thread that computes has its own."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

_SOFT = 1
"""`omp_pause_soft` of the OpenMP specification 5.0."""


def end_idle_helpers() -> None:
    """End the calling thread's helpers; its next parallel work starts new ones, in some 50 microseconds.

    To be called where a thread has computed and another computes next. As long as there are more helpers than cores,
    GNU's OpenMP has none of them wait actively, and a thread is woken for each operator: a decoding step of 17 ms took
    28. Does nothing with other OpenMP libraries.
    """
    if library := _openmp():
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> Any:
    """Return GNU's library if this process has loaded it and it is of GCC 9 or later."""
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except (OSError, AttributeError):
        return None
    return library if hasattr(library, "omp_pause_resource_all") else None
