"""Run of a program: start it, read its output, and end it with its descendants, however it or this process ends.

It runs under the guardian of `_guardian.py`, as in `guarded.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.processes._guardian import KILL_S
from astune.processes.ending import kill_group
from astune.processes.guarded import guarded

_KEPT_BYTES = 256 * 1024
"""The end of each output stream that is kept."""
_ENDS_S = KILL_S + 5.0


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """Output of a program on each stream, and how it ended."""

    stdout: str
    stderr: str
    status: int | None
    """Exit status, below 0 the negated number of a signal; None if its guardian was killed."""
    memory: int
    """Bytes held by its processes when it was ended for exceeding the limit; 0 otherwise."""


async def run_program(
    command: Sequence[str], *, source: Path, environment: Mapping[str, str], folder: Path, memory: int = 0
) -> ProgramEnd:
    """Run a program in `folder` until it ends. When the caller is cancelled or this process ends, it is killed.

    Args:
        source: file for its standard input.
        memory: memory limit in bytes of all its processes; 0 is no limit.

    Raises:
        OSError, ValueError: it could not be started.
    """
    reading, writing = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *guarded(command, grace_s=0.0, report=writing, source=source, memory=memory, alone=True),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(writing,),
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    report: dict[str, int] = {}
    try:
        stdout, stderr = await asyncio.gather(_end_of(process.stdout), _end_of(process.stderr))
        await process.wait()
    finally:
        try:
            await _ended(process)
        finally:
            report = _read(reading)
            if "status" not in report and "pid" in report:
                kill_group(report["pid"])
    return ProgramEnd(stdout, stderr, report.get("status"), report.get("memory", 0))


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Make the guardian end everything, and wait for that.

    What the program still wrote is read and dropped: a stream that is full is never seen to end.
    """
    if process.returncode is None:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_S):
            await asyncio.gather(_end_of(process.stdout), _end_of(process.stderr), process.wait())


def _read(descriptor: int) -> dict[str, int]:
    """Return everything that the guardian has reported."""
    os.set_blocking(descriptor, False)
    with os.fdopen(descriptor, "rb") as file:
        lines = (file.read() or b"").splitlines()
    return {name: value for line in lines for name, value in json.loads(line).items()}


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """Return the end of a stream; the rest is read and dropped, so that a verbose program is not blocked."""
    kept = bytearray()
    while stream is not None and (piece := await stream.read(65536)):
        kept += piece
        del kept[:-_KEPT_BYTES]
    return kept.decode("utf-8", "replace")
