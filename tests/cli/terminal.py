"""The `astune` command on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from astune_command import MAIN, ROOT


@contextmanager
def on_a_terminal(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`astune FLAGS` in `folder` on a terminal of its own, and the end of it that a person has."""
    ours, theirs = pty.openpty()
    of_this_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {MAIN}"
    process = subprocess.Popen(
        [sys.executable, "-c", of_this_terminal, *flags],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        os.close(ours)


def read_until(terminal: int, text: str, deadline_s: float = 120.0) -> str:
    give_up = time.monotonic() + deadline_s
    seen = ""
    while text not in seen:
        assert select.select([terminal], [], [], give_up - time.monotonic())[0], seen
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            break
    assert text in seen
    return seen
