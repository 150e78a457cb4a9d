"""The `astune` command as a process of its own, for tests that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from warm_commands import warm_commands

ROOT = Path(__file__).parents[2]
MAIN = "from astune.cli import main; main()"


def start(
    folder: Path, *arguments: str, before: tuple[str, ...] = (), together: bool = False, **variables: str
) -> subprocess.Popen[str]:
    """`astune ARGUMENTS` in `folder`; `before` are further arguments of the interpreter, as for a debugger.

    What it says of errors and warnings comes with the rest of its output where `together` is set.
    """
    program = before or ("-c", MAIN)
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env={**_environment(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
    )


def interrupted_at(process: subprocess.Popen[str], text: str) -> tuple[list[str], str, str]:
    """Ctrl-C when a line has `text`: the lines until then, what followed, and what was said of it."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if text in line:
            process.send_signal(signal.SIGINT)
            break
    rest, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    return lines, rest, err


def astune(folder: Path, *arguments: str, status: int = 0, timeout_s: float = 300) -> str:
    """Its output; of a run that is to fail, what it said of that as well."""
    if (commands := warm_commands()).can_run(os.environ):
        ended, out, err = commands.run(folder, arguments, _environment(), timeout_s)
    else:
        process = start(folder, *arguments)
        out, err = process.communicate(timeout=timeout_s)
        ended = process.returncode
    assert ended == status, out + err
    return out if status == 0 else out + err


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
