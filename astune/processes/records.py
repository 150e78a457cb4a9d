"""Records of the processes that ASTuner started for this user: one small JSON file each, so that no lock is needed.

    ~/.local/state/astune/processes/<pid>-<hash of its start>.json     ($XDG_STATE_HOME in place of ~/.local/state)

A process is identified by its id and start time, so that a reused id is never mistaken for ours. Files of ended
processes are removed whenever the records are read; those of other machines, which may share the home folder, are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A recorded process; `start` is as returned by `started_at`."""

    pid: int
    start: str
    host: str
    name: str
    command: str
    run: str
    recorded_at: float


def registry_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "astune" / "processes"


def record(pid: int, *, name: str, command: str = "", run: str = "") -> ProcessRecord | None:
    """Record a process that was just started; None if it is already gone, or nothing can be written.

    Records only serve `astune --kill`: a folder that cannot be written is logged and is not an error.

    Args:
        command: the command line, which the system may not show yet.
    """
    start = started_at(pid)
    if start is None:
        return None
    command = command or command_line(pid)
    found = ProcessRecord(pid, start, socket.gethostname(), name, command, run, time.time())
    path = _path(found)
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.write_text(json.dumps(asdict(found), ensure_ascii=False, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as cause:
        _log.warning("%s (process %d) is not recorded, --kill will not find it: %s", name, pid, cause)
        return None
    return found


def forget(process: ProcessRecord) -> None:
    """Remove a record. Idempotent."""
    _path(process).unlink(missing_ok=True)


def recorded() -> list[ProcessRecord]:
    """Every recorded process of this machine that still runs, the oldest first; the others' records are removed."""
    found: list[ProcessRecord] = []
    for path in registry_folder().glob("*.json"):
        try:
            process = ProcessRecord(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:  # another process removed it meanwhile
            continue
        except (OSError, ValueError, TypeError) as cause:
            _log.warning("%s is not a record of a process and is removed: %s", path, cause)
            path.unlink(missing_ok=True)
            continue
        if process.host != socket.gethostname():
            continue
        if started_at(process.pid) == process.start:
            found.append(process)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda process: process.recorded_at)


def started_at(pid: int) -> str | None:
    """Return the start time of the process, for comparison only; None if it does not exist.

    Under Linux psutil adds the boot time, which moves when the clock is set; it is subtracted again.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time() - (psutil.boot_time() if psutil.LINUX else 0.0):.2f}"
    except psutil.Error:
        return None


def command_line(pid: int) -> str:
    """Return program and arguments as the system has them now; empty for a process that is gone."""
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""


def _path(process: ProcessRecord) -> Path:
    digest = hashlib.sha256(f"{process.host} {process.start}".encode()).hexdigest()[:12]
    return registry_folder() / f"{process.pid}-{digest}.json"
