"""A run's metrics: `metrics.jsonl`, one line per step and kind.

    {"step": 3, "kind": "train", "time": 1790000000.0, "elapsed_s": 41.8, "metrics": {"reward/mean": 0.25, ...}}

`kind` is `train` or `validation`; `elapsed_s` counts the seconds that the run has been active up to this line, across
resumes. A number that JSON cannot hold is written as "nan", "inf" or "-inf". A line is on disk when `append` returns; a
last line that a kill truncated is ignored, and removed before the next is written.

Names are `group/name`. The report uses, if present: `balance/sampled`, `balance/trained`, `balance/masked/<reason>`,
`balance/dropped/<reason>` (see `balance_metrics`) and `time/<phase>_s`.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, cast, get_args

import orjson

from astune.runs._files import fsync_folder, require_still_there, store_errors, write_atomic
from astune.runs._limits import METRICS_BYTES, open_regular, read_regular
from astune.schema import RunStoreError, TokenBalance

MetricKind = Literal["train", "validation"]
_FLOATS, _KINDS = frozenset([float]), get_args(MetricKind)
_YEAR_3000 = 32_503_680_000
_END_BYTES = 2**17
"""A line has 3 to 10 KB."""


@dataclass(frozen=True, slots=True)
class MetricsLine:
    step: int
    kind: MetricKind
    time: float
    elapsed_s: float
    metrics: dict[str, float]


class MetricsFollower(Protocol):
    """Receiver of the lines added after a metrics log was opened; must return at once and raise nothing."""

    def on_open(self, last_step: int) -> None:
        """Handle the opening of a log whose last step, after the rewind of a resume, is `last_step`; -1 for none."""

    def on_line(self, line: MetricsLine) -> None:
        """Handle a line that is on disk."""


class NoFollower(MetricsFollower):
    """Follower that does nothing."""


class MetricsLog:
    """Writer of one run's metrics."""

    def __init__(self, path: Path, follower: MetricsFollower | None = None) -> None:
        """Open the log at `path` to append, or create it."""
        self.path = path
        self._follower = follower or NoFollower()
        with store_errors(f"opening {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = read_metrics(path)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = _whole_lines(path)
            os.ftruncate(self._descriptor, self._size)
            fsync_folder(path.parent)
        self._started = time.monotonic() - (lines[-1].elapsed_s if lines else 0.0)
        self._follower.on_open(max((line.step for line in lines), default=-1))

    def append(self, step: int, kind: MetricKind, metrics: Mapping[str, float]) -> MetricsLine:
        """Write one line, durably. Raises RunStoreError if it could not be written, and the log ends with the previous
        line; or if the file was removed."""
        numbers = {name: float(value) for name, value in metrics.items()}
        line = MetricsLine(step, kind, time.time(), time.monotonic() - self._started, numbers)
        data = encoded([line])
        require_still_there(self.path, os.fstat(self._descriptor))
        with store_errors(f"writing {self.path}"):
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(data)
        self._follower.on_line(line)
        return line

    def read(self) -> list[MetricsLine]:
        return read_metrics(self.path)

    def find(self, step: int, kind: MetricKind) -> MetricsLine | None:
        return next((line for line in self.read() if (line.step, line.kind) == (step, kind)), None)

    def rewind(self, step: int) -> int:
        """Drop the lines of steps after `step`; returns how many."""
        lines = self.read()
        kept = [line for line in lines if line.step <= step]
        data = encoded(kept)
        write_atomic(self.path, data)
        os.close(self._descriptor)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND)
        self._size = len(data)
        self._started = time.monotonic() - (kept[-1].elapsed_s if kept else 0.0)
        return len(lines) - len(kept)

    def close(self) -> None:
        """Close the log. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[MetricsLine]:
    """Return every complete line; none if there is no file yet. Raises RunStoreError if a line other than a truncated
    last one is not a metrics line."""
    with store_errors(f"reading {path}"):
        try:
            data = read_regular(path, METRICS_BYTES)
        except FileNotFoundError:
            return []
    lines: list[MetricsLine] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            lines.append(parse_line(line))
        except ValueError as cause:
            raise RunStoreError(
                f"{path}, line {number} is not a metrics line: {cause}", hint="remove the line, or restore the file"
            ) from cause
    return lines


def parse_line(line: bytes) -> MetricsLine:
    """Parse one complete line. Raises ValueError if it is not a metrics line."""
    try:
        fields = orjson.loads(line)
        metrics: dict[str, float] = fields["metrics"]
        if not _FLOATS.issuperset(map(type, metrics.values())):
            metrics = {name: float(value) for name, value in metrics.items()}
        step, kind, at, elapsed_s = (fields[name] for name in ("step", "kind", "time", "elapsed_s"))
        if type(step) is not int or kind not in _KINDS or not (is_time(at) and is_time(elapsed_s)):
            raise ValueError(f"step {step!r}, kind {kind!r}, time {at!r}, elapsed_s {elapsed_s!r}")
        return MetricsLine(step, kind, at, elapsed_s, metrics)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as cause:
        raise ValueError(repr(cause)) from cause


def is_time(value: object) -> bool:
    """Return whether the value is a number of seconds that can be converted to a date."""
    return type(value) in (int, float) and 0 <= cast(float, value) < _YEAR_3000


def encoded(lines: Iterable[MetricsLine]) -> bytes:
    """Encode lines as the file holds them."""
    return b"".join(map(_encode, lines))


def balance_metrics(balance: TokenBalance) -> dict[str, float]:
    """Convert the token accounting of one step to metrics; `balance_of` is the inverse."""
    named = {"balance/sampled": float(balance.sampled), "balance/trained": float(balance.trained)}
    named |= {f"balance/masked/{reason}": float(count) for reason, count in balance.masked.items()}
    return named | {f"balance/dropped/{reason}": float(count) for reason, count in balance.dropped.items()}


def balance_of(metrics: Mapping[str, float]) -> TokenBalance:
    """Return the token accounting in one line's metrics; all zero if it has none."""

    def account(prefix: str) -> Counter[str]:
        return Counter(
            {name[len(prefix) :]: round(count) for name, count in metrics.items() if name.startswith(prefix)}
        )

    return TokenBalance(
        sampled=round(metrics.get("balance/sampled", 0)),
        trained=round(metrics.get("balance/trained", 0)),
        masked=account("balance/masked/"),
        dropped=account("balance/dropped/"),
    )


def total_balance(lines: Iterable[MetricsLine]) -> TokenBalance:
    """Sum the token accounting over the given lines."""
    return sum((balance_of(line.metrics) for line in lines), TokenBalance())


def _encode(line: MetricsLine) -> bytes:
    metrics = {name: value if math.isfinite(value) else str(value) for name, value in line.metrics.items()}
    record = {"step": line.step, "kind": line.kind, "time": line.time, "elapsed_s": round(line.elapsed_s, 3)}
    return orjson.dumps(record | {"metrics": metrics}, option=orjson.OPT_APPEND_NEWLINE)


def _whole_lines(path: Path) -> int:
    """Count the bytes up to and including the last line end."""
    return path.read_bytes().rfind(b"\n") + 1


def last_of(path: Path, kind: MetricKind) -> MetricsLine | None:
    """The newest line of a kind, found in the file's end; None where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError):
            found = parse_line(line)
            if found.kind == kind:
                return found
    return None
