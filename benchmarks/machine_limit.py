"""How fast this machine reads memory, which bounds decoding: a token of one sequence reads every weight once."""

from __future__ import annotations

import time

_READS = 5


def read_gb_per_s(size: int) -> float:
    """The median over a few reads of a buffer of `size` bytes, by all of torch's threads."""
    import torch

    buffer = torch.zeros(size // 8, dtype=torch.int64)
    seconds: list[float] = []
    for _ in range(_READS):
        started = time.perf_counter()
        buffer.sum()
        seconds.append(time.perf_counter() - started)
    return buffer.nbytes / sorted(seconds)[_READS // 2] / 1e9
