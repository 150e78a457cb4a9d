"""Summary of a run: its `run.json`, a JSON object of `RunInfo`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import orjson

from astune.runs._limits import INFO_BYTES, read_regular
from astune.runs.metrics import is_time
from astune.schema import RunStoreError

RUN_FORMAT = 1
RunKind = Literal["training", "debug"]
RunStatus = Literal["running", "finished", "failed", "interrupted", "killed"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    experiment: str
    created_at: float
    status: RunStatus = "running"
    message: str = ""
    ended_at: float | None = None
    format: int = RUN_FORMAT
    kind: RunKind = "training"
    cleaned: bool = False
    """True if the resume point was removed."""

    @property
    def run_id(self) -> str:
        """Identifier of 16 hexadecimal digits, unchanged when the run is resumed or its folder is moved."""
        return hashlib.sha256(f"{self.experiment} {self.created_at!r}".encode()).hexdigest()[:16]


def read_info(path: Path) -> RunInfo:
    """Read a `run.json` and check the type of each field. Raises RunStoreError if it cannot be read, or has a field of
    another type."""
    try:
        info = RunInfo(**orjson.loads(read_regular(path, INFO_BYTES)))
    except (OSError, orjson.JSONDecodeError, TypeError) as cause:
        raise RunStoreError(f"{path} cannot be read: {cause!r}") from cause
    fits = {
        "experiment": isinstance(info.experiment, str),
        "created_at": is_time(info.created_at),
        "status": info.status in get_args(RunStatus),
        "message": isinstance(info.message, str),
        "ended_at": info.ended_at is None or is_time(info.ended_at),
        "format": type(info.format) is int,
        "kind": info.kind in get_args(RunKind),
        "cleaned": type(info.cleaned) is bool,
    }
    if wrong := [name for name, fit in fits.items() if not fit]:
        raise RunStoreError(f"{path} cannot be read: its {wrong[0]} is {getattr(info, wrong[0])!r:.80}")
    return info
