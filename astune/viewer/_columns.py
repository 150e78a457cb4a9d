"""Measurements by metric, as charts read them: several runs are smaller so, and read faster, than line by line."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from astune.runs import MetricsLine

_MISSING = object()


def columns_of(lines: Sequence[MetricsLine], only: Sequence[str]) -> dict[str, Any]:
    """Return when the lines were written, the metrics that are asked for, and the names of all.

    Two lines, `reward/mean` in both and `train/loss` in the second, give

        {"at": [[0, "validation", 1.7e9, 0.5], [1, "train", 1.7e9, 9.5]], "names": ["reward/mean", "train/loss"],
         "columns": {"reward/mean": {"of": null, "values": [0.2, 0.3]}, "train/loss": {"of": [1], "values": [0.7]}}}

    where `of` are the numbers of the lines that have the metric, null for all of them.

    Args:
        only: `time/*` is every metric that begins so.
    """
    names = sorted(set().union(*(line.metrics for line in lines)))
    kept = [name for name in names if any(fnmatchcase(name, each) for each in only)]
    return {
        "names": names,
        "at": [(line.step, line.kind, line.time, line.elapsed_s) for line in lines],
        "columns": {name: _column(lines, name) for name in kept},
    }


def _column(lines: Sequence[MetricsLine], name: str) -> dict[str, Any]:
    values = [line.metrics.get(name, _MISSING) for line in lines]
    if _MISSING not in values:
        return {"of": None, "values": values}
    of = [number for number, value in enumerate(values) if value is not _MISSING]
    return {"of": of, "values": [values[number] for number in of]}
