"""A run's metrics while they are written: each line is read once, and a damaged one is passed over and told."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from astune.runs import MetricKind, MetricsLine, Stamp, open_regular, parse_line

_END_BYTES = 2**17
"""A line has 3 to 10 KB."""
_LINE_BYTES = 2**20
_SHOWN_BYTES = 2**27
"""What is shown of a file: the lines of some 10,000 steps."""


@dataclass
class MetricsSoFar:
    """What was read of one file. `damaged` are numbers of lines; `torn` says that behind the last line something stands
    that is none yet; `unreadable` why it could not be read now, where `lines` are those that were read before."""

    lines: list[MetricsLine] = field(default_factory=list[MetricsLine])
    damaged: list[int] = field(default_factory=list[int])
    torn: bool = False
    unreadable: str = ""


class MetricsFile:
    """Safe to ask from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin()

    def read(self) -> MetricsSoFar:
        """Every whole line up to now.

        A file that was put in the place of an earlier one is read from its start. It may have the earlier one's inode,
        so the last line that was read has to stand where it stood.
        """
        unreadable = ""
        with self._lock:
            try:
                if (stamp := Stamp.of(self._path)) != self._stamp:
                    self._go_on()
                    self._stamp = stamp
            except FileNotFoundError:
                self._begin()
            except OSError as cause:
                unreadable = cause.strerror or type(cause).__name__
            if not unreadable and self._stamp.size > _SHOWN_BYTES:
                unreadable = f"it has more than {_SHOWN_BYTES:,} bytes, of which the first are shown"
            return MetricsSoFar(list(self._lines), list(self._damaged), self._torn, unreadable)

    def _begin(self) -> None:
        self._offset = 0
        self._last = b""
        self._n_lines = 0
        self._lines: list[MetricsLine] = []
        self._damaged: list[int] = []
        self._torn = False
        self._stamp = Stamp()

    def _go_on(self) -> None:
        with open_regular(self._path) as file:
            file.seek(self._offset - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._begin()
                file.seek(0)
            *lines, rest = file.read(_SHOWN_BYTES - self._offset).split(b"\n")
        self._torn = bool(rest)
        for line in lines:
            self._n_lines += 1
            self._offset += len(line) + 1
            self._last = line + b"\n"
            try:
                if len(line) > _LINE_BYTES:
                    raise ValueError("it is too long")
                self._lines.append(parse_line(line))
            except ValueError:
                self._damaged.append(self._n_lines)


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
