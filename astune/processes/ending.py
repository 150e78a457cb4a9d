"""Ending a child process, and describing how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def kill_group(leader: int) -> None:
    """Kill every process in the group of `leader`; no-op if none is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def wait_or_kill(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Wait for the end of a process that was asked to end; kill it after `patience_s` seconds. Return its status."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def how_it_ended(status: int | None) -> str:
    """Format how a process ended: `ended with exit status 3` or `was ended by SIGKILL`. `status` is the exit status,
    below 0 the negated number of a signal; None if unknown."""
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit status {status}"
    named = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was ended by {named}"
