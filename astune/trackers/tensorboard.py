"""TensorBoard events in the run's folder, written with the tensorboard package alone: no torch, no TensorFlow.

The package comes with the `local` extra. Without it this writes nothing; `metrics.jsonl` is the record.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Split
from astune.trackers.base import EndStatus, TrackedRun, Tracker, tagged


class TensorBoardTracker(Tracker):
    """Writes event files into `tensorboard/` of the run; `tensorboard --logdir launcher_record` shows them."""

    def __init__(self) -> None:
        self._events: _EventFile | None = None

    def start(self, run: TrackedRun, config: AstuneConfig) -> None:
        if importlib.util.find_spec("tensorboard") is not None:
            self._events = _EventFile(run.path / "tensorboard", purge_step=run.last_step)

    def log(self, step: int, split: Split, metrics: Mapping[str, float]) -> None:
        if self._events is not None:
            self._events.write(step, tagged(split, metrics))

    def finish(self, status: EndStatus) -> None:
        if self._events is not None:
            self._events.close()


class _EventFile:
    """An event file. Events of `purge_step` + 1 and later in earlier files are hidden by TensorBoard."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        event_proto: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        record_writer = importlib.import_module("tensorboard.summary.writer.record_writer")
        self._event: Any = event_proto.Event
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:017d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._writer = record_writer.RecordWriter(self._file)
        self._put(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        start = event_proto.SessionLog(status=event_proto.SessionLog.START)
        self._put(self._event(wall_time=time.time(), step=purge_step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        named = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._put(self._event(wall_time=time.time(), step=step, summary=self._summary(value=named)))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _put(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
