"""A run's metrics while they are written: each line is read once, and a damaged one is skipped and reported."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from astune.runs import MetricsLine, Stamp, open_regular, parse_line

_LINE_BYTES = 2**20
_MEASUREMENT = b'"validation"'
_BLOCK_BYTES = 2**18
_END_OF_READ = 256
"""Last bytes read, which must be unchanged at their position."""
_KIND_WITHIN = 64
"""A line begins with its step and its kind."""
_SHOWN_BYTES = 2**27
"""Maximum bytes shown of a file: the lines of some 10,000 steps."""


@dataclass
class MetricsSoFar:
    """Lines read of one file. `damaged` are numbers of lines; `torn` says that behind the last line something stands
    that is none yet; `unreadable` why it could not be read now, where `lines` are those that were read before."""

    lines: list[MetricsLine] = field(default_factory=list[MetricsLine])
    damaged: list[int] = field(default_factory=list[int])
    torn: bool = False
    unreadable: str = ""


class MetricsFile:
    """Safe to ask from several threads. With `measurements_only`, the other lines are not parsed, which a list of many
    runs has no time for."""

    def __init__(self, path: Path, *, measurements_only: bool = False) -> None:
        self._path = path
        self._pick = _measurements if measurements_only else _each
        self._lock = threading.Lock()
        self._begin()

    def read(self) -> MetricsSoFar:
        """Every whole line up to now.

        A file that was put in the place of an earlier one is read from its start. It may have the earlier one's inode,
        so the last bytes that were read have to stand where they stood.
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
        self._offset, self._end = 0, b""
        self._n_lines = 0
        self._lines: list[MetricsLine] = []
        self._damaged: list[int] = []
        self._torn = False
        self._stamp = Stamp()

    def _go_on(self) -> None:
        with open_regular(self._path) as file:
            file.seek(self._offset - len(self._end))
            if file.read(len(self._end)) != self._end:
                self._begin()
                file.seek(0)
            for lines in _blocks(file, _SHOWN_BYTES - self._offset):
                self._take(lines)
            self._torn = bool(file.read(1))

    def _take(self, lines: bytes) -> None:
        self._offset += len(lines)
        self._end = (self._end + lines[-_END_OF_READ:])[-_END_OF_READ:]
        for line in self._pick(lines):
            self._n_lines += 1
            try:
                if len(line) > _LINE_BYTES:
                    raise ValueError("it is too long")
                self._lines.append(parse_line(line))
            except ValueError:
                self._damaged.append(self._n_lines)


def _blocks(file: BinaryIO, limit: int) -> Iterator[bytes]:
    """The whole lines among a file's next bytes, in blocks that a processor's cache holds unless a line is longer."""
    size = _BLOCK_BYTES
    while block := file.read(min(size, limit)):
        whole = block.rfind(b"\n") + 1
        file.seek(whole - len(block), os.SEEK_CUR)
        if whole:
            limit -= whole
            yield block[:whole]
        elif len(block) < size:
            return
        else:
            size *= 2


def _each(lines: bytes) -> list[bytes]:
    return lines[:-1].split(b"\n")


def _measurements(lines: bytes) -> Iterator[bytes]:
    """The lines of measurements among whole lines, with a look at the beginning of each."""
    begin = 0
    while end := lines.find(b"\n", begin) + 1:
        if lines.find(_MEASUREMENT, begin, begin + _KIND_WITHIN) >= 0:
            yield lines[begin : end - 1]
        begin = end
