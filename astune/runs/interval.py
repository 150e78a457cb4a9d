"""Confidence interval of a rate."""

from __future__ import annotations

import math


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the 95 % interval of a rate, valid also near 0 and 1.

    Source: Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    middle = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
