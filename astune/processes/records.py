"""The processes that ASTuner started on behalf of this user: one small JSON file each, so that no lock is needed.

    ~/.local/state/astune/processes/<pid>-<hash of its start>.json     ($XDG_STATE_HOME in place of ~/.local/state)

A process is its id and the moment of its start, so that an id that the system gave to somebody else is never taken
for ours. A file whose process is gone is removed whenever the records are read; those of other machines, which may
share the home folder, are left alone. What is done with a process is not decided here.
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
    """A process; `start` is as `started_at` has it."""

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
    """Write down a process that was just started; None where it is gone already, or nothing can be written.

    A record is only there for `astune --kill`: a folder that cannot be written is logged and stops nothing.

    Args:
        command: the command line, where the system may not show it yet.
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
            _log.warning("%s is no record of a process, it is removed: %s", path, cause)
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
    """Return when the process started, to be compared only; None where there is none.

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
