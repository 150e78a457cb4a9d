"""Standard output and error that survive an agent closing them, a lost reader, and characters that they lack."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


def outlive_readers() -> None:
    """Discard `sys.stdout` and `sys.stderr` once nobody reads them, as behind `| head -1`. They get their own
    descriptors: where an agent closes 1 or 2, the next file that is opened gets that number. A character that their
    encoding does not have is escaped, as under `PYTHONIOENCODING=ascii`.
    """
    sys.stdout, sys.stderr = _Outliving(_copy(sys.stdout)), _Outliving(_copy(sys.stderr))


def _copy(stream: TextIO | None) -> TextIO:
    if stream is None:  # the command was started with it closed
        return open(os.devnull, "w", encoding="utf-8")
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError):  # it is none of the system's
        return stream
    stream.flush()
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return os.fdopen(descriptor, "w", encoding=stream.encoding, errors=errors, buffering=1 if stream.isatty() else -1)


class _Outliving:
    """A text stream whose `write` and `flush` never fail for want of a reader, and which nobody closes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lose_reader()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lose_reader()

    def close(self) -> None:
        self.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose_reader(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError, ValueError):  # what the stream still holds is flushed there at the end
            os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
