"""Python's garbage collector, at rest while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Among many new objects, none of them garbage, it would look for some again and again.

    Rows of tasks take half the time within, imports of large libraries five sixths.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
