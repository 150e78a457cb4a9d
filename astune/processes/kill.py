"""Ending processes of earlier runs: only recorded ones of ours, with their children, never this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from astune.processes.records import ProcessRecord, command_line, forget, recorded

GRACE_S = 15.0
"""Seconds between SIGTERM and SIGKILL: a run that ends cleanly saves its progress first."""
_KILL_S = 5.0


@dataclass(frozen=True)
class Target:
    """A process to be ended; `record` is None for a child of a recorded one."""

    process: psutil.Process
    command: str
    record: ProcessRecord | None


def find_targets(words: Sequence[str]) -> list[Target]:
    """Find recorded processes whose command line has one of the words, each followed by its children.

    A recorded process must still have the recorded start time (checked by `recorded`), and psutil compares it again
    before it sends a signal.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[int, Target] = {}
    for record in recorded():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(record.pid)
            if not any(word.lower() in f"{record.command} {command_line(process.pid)}".lower() for word in words):
                continue
            below = process.children(recursive=True)
            if record.pid not in spared:
                found[record.pid] = Target(process, record.command, record)
            for child in below:
                if child.pid not in spared and child.pid not in found:
                    found[child.pid] = Target(child, command_line(child.pid), None)
    return list(found.values())


def end(targets: Sequence[Target], *, grace_s: float = GRACE_S) -> list[Target]:
    """SIGTERM to all at once, SIGKILL to what is still there after `grace_s` seconds; returns what even that left."""
    left = list(targets)
    for signal_to, patience_s in ((psutil.Process.terminate, grace_s), (psutil.Process.kill, _KILL_S)):
        for target in left:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                signal_to(target.process)
        _, alive = psutil.wait_procs([target.process for target in left], timeout=patience_s)
        left = [target for target in left if target.process in alive]
        if not left:
            break
    for target in targets:
        if target.record is not None and target not in left:
            forget(target.record)
    return left
