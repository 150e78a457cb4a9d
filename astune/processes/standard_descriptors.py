"""Descriptors 0 to 2, which agents in this process may close."""

from __future__ import annotations

import os

_LAST = 2


def refill_standard_descriptors() -> None:
    """Open those that are closed on nothing, so that no file of ours gets a number that the next agent closes, or that
    libraries write to.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
