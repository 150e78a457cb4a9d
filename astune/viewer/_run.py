"""A run as the viewer sees it: opened as far as it goes, with a list of what is missing.

It writes nothing into a run but its `notes.json`, when a reader asks for that. Beside the episodes of one that is being
written, SQLite may keep its two files.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from astune.runs import (
    DamagedStoreError,
    EpisodeReader,
    EpisodeRow,
    HeldOut,
    MetricsLine,
    RunDirectory,
    RunInfo,
    RunNotes,
    Stamp,
    last_of,
    read_regular,
    salvage,
    stamps_of,
)
from astune.runs.notes import FILE as NOTES
from astune.schema import RunStoreError, Vocabulary
from astune.viewer._answers import Refusal
from astune.viewer._columns import columns_of
from astune.viewer._folder import Folder
from astune.viewer._found import PoliciesOfEpisodes, Questions, TextSearch
from astune.viewer._metrics import MetricsFile, MetricsSoFar
from astune.viewer._settings import Settings, policies_of, read_settings

T = TypeVar("T")
S = TypeVar("S")
_SHOWN_OF_A_RUN = (
    *("run", "experiment", "name", "created_at", "ended_at", "status", "message", "backbone", "model", "steps"),
    *("elapsed_s", "episodes", "reward", "problems", "seed", "held_out", "settings", "notes"),
)
_CONFIG_BYTES = 2**20
_NAMED_LINES = 20
_logger = logging.getLogger(__name__)


class _Kept(Generic[S, T]):
    """Value derived from a file, cached until its stamp changes; thread-safe."""

    def __init__(self) -> None:
        self._kept: tuple[S, T] | None = None
        self._making = threading.Lock()

    def of(self, stamp: S, make: Callable[[], T]) -> T:
        with self._making:
            kept = self._kept
            if kept is None or kept[0] != stamp:
                self._kept = kept = stamp, make()
            return kept[1]

    def drop(self) -> None:
        self._kept = None


@dataclass(frozen=True)
class _Known:
    """Results of reading the episodes of one store; another store begins without them."""

    search: TextSearch = field(default_factory=TextSearch)
    policies: PoliciesOfEpisodes = field(default_factory=PoliciesOfEpisodes)
    questions: Questions = field(default_factory=Questions)


class ViewedRun:
    """Safe to ask from several threads. `name` is what the run is called in the folder."""

    def __init__(self, name: str, path: Path, folder: Folder) -> None:
        self.name = name
        self.path = path
        self._folder = folder
        self._files = RunDirectory.look_at(path)
        self._metrics = MetricsFile(self._files.metrics_path)
        self._lock = threading.Lock()
        self._rescuing = threading.Lock()
        self._reader: tuple[object, EpisodeReader] | None = None
        self._known = _Known()
        self._salvaged: tempfile.TemporaryDirectory[str] | None = None
        self._damage = ""
        self._vocabulary = _Kept[Stamp, Vocabulary | None]()
        self._newest = _Kept[Stamp, MetricsLine | None]()
        self._ended = _Kept[Stamp, RunInfo]()
        self._read_settings = _Kept[Stamp, Settings]()
        self._scores = MetricsFile(self._files.metrics_path, measurements_only=True)
        self._noted = _Kept[Stamp, RunNotes]()
        self._columns = _Kept[tuple[Stamp, tuple[str, ...]], dict[str, Any]]()
        self._counted = _Kept[tuple[Stamp, Stamp], tuple[int | None, list[str]]]()

    def info(self) -> dict[str, Any]:
        """Return the entry in a list of runs; each file is read again only when it has changed.

        A run that makes the viewer fail has only its name, so that it does not hide the others.
        """
        try:
            return self._read()
        except Exception as cause:
            _logger.exception("the run %s cannot be shown", self.path)
            shown = dict.fromkeys(_SHOWN_OF_A_RUN)
            problem = f"the viewer cannot show it: {type(cause).__name__}; its log says more"
            return shown | {
                "run": self.name,
                "experiment": self.path.parent.name,
                "name": self.path.name,
                "status": "killed",
                "message": "",
                "problems": [problem],
                "notes": RunNotes().model_dump(),
            }

    def _read(self) -> dict[str, Any]:
        problems: list[str] = []
        info = self._info(problems)
        last = self._last_line()
        episodes = self._count(problems)
        settings = self.settings()
        shown = {
            "run": self.name,
            "experiment": info.experiment if info is not None else self.path.parent.name,
            "name": self.path.name,
            "created_at": info.created_at if info is not None else None,
            "ended_at": info.ended_at if info is not None else None,
            "status": info.status if info is not None else "killed",
            "message": info.message if info is not None else "",
            "backbone": settings.backbone,
            "model": settings.model,
            "seed": settings.seed,
            "steps": last.step if last is not None else None,
            "elapsed_s": last.elapsed_s if last is not None else None,
            "episodes": episodes,
            "reward": last.metrics.get("reward/mean") if last is not None else None,
            "held_out": asdict(held_out) if (held_out := self._held_out()) is not None else None,
            "settings": {},
            "notes": self._notes(problems).model_dump(),
            "problems": problems,
        }
        if shown["model"] is None and not _begins(shown):
            problems.append("config.yaml is missing, or does not name a model")
        return shown

    def problems(self, info: Mapping[str, Any]) -> list[str]:
        """Describe what is missing or damaged; `info` is the result of `info`."""
        found: list[str] = [*info["problems"]]
        if self._damage:
            found.append(self._damage)
        try:
            if self.vocabulary() is None and not _begins(info):
                found.append("rollout/vocabulary.json.zst is missing: tokens are shown as their ids")
        except RunStoreError as error:
            found.append(str(error))
        metrics = self.metrics()
        if metrics.unreadable:
            found.append(f"metrics.jsonl cannot be read: {metrics.unreadable}")
        if metrics.damaged:
            lines = ", ".join(map(str, metrics.damaged[:_NAMED_LINES])) + ", …" * (len(metrics.damaged) > _NAMED_LINES)
            found.append(f"metrics.jsonl cannot be read in line {lines}")
        if metrics.torn and info["status"] != "running":
            found.append("metrics.jsonl ends in the middle of a line")
        return found

    def status(self) -> str:
        info = self._info([])
        return info.status if info is not None else "killed"

    def config(self) -> str:
        """The resolved configuration as it was written, decoded as UTF-8 as far as it is; empty where it is missing."""
        path = self._inside(self._files.config_path)
        try:
            return read_regular(path, _CONFIG_BYTES).decode(errors="replace") if path is not None else ""
        except OSError:
            return ""

    def metrics(self) -> MetricsSoFar:
        return self._metrics.read() if self._metrics_path is not None else MetricsSoFar()

    def columns(self, only: Sequence[str]) -> dict[str, Any]:
        """Return what `columns_of` makes of its metrics; made again only when the file has changed."""
        stamp = Stamp.of(self._files.metrics_path), tuple(only)
        return self._columns.of(stamp, lambda: columns_of(self.metrics().lines, only))

    def vocabulary(self) -> Vocabulary | None:
        """Return the vocabulary of its tokens. Raises RunStoreError if the file is damaged."""
        path = self._inside(self._files.vocabulary_path)
        if path is None:
            return None
        with self._lock:
            return self._vocabulary.of(Stamp.of(path), self._files.vocabulary)

    def ask(self, question: Callable[[EpisodeReader], T]) -> T:
        """Read the episodes; of a damaged store, what can be read of it.

        Raises:
            Refusal: there are none.
            RunStoreError: the store is of a version that cannot be read, or one episode is damaged.
        """
        try:
            return question(self._open())
        except DamagedStoreError as damage:
            self._rescue(damage)
            return question(self._open())

    def search(self, text: str) -> list[int]:
        """`seq` of the episodes whose messages hold a text."""
        return self.ask(lambda reader: self._known.search.matching(reader, text))

    def question(self, reader: EpisodeReader, row: EpisodeRow) -> str:
        """Return an episode's question; see `Questions.of`."""
        return self._known.questions.of(reader, row)

    def policies(self) -> dict[int, frozenset[str]]:
        """The policies that answered in each episode, by `seq`; empty in a run of one."""
        policies = policies_of(self.settings())
        return self.ask(lambda reader: self._known.policies.of(reader, policies)) if policies else {}

    @property
    def _metrics_path(self) -> Path | None:
        return self._inside(self._files.metrics_path)

    def _inside(self, path: Path) -> Path | None:
        """The path, where it exists and does not lead out of the folder."""
        return path if path.is_file() and self._folder.holds(path) else None

    def _last_line(self) -> MetricsLine | None:
        """The newest line of training."""
        path = self._metrics_path
        if path is None:
            return None
        return self._newest.of(Stamp.of(path), lambda: last_of(path, "train"))

    def _held_out(self) -> HeldOut | None:
        return HeldOut.of(self._scores.read().lines) if self._metrics_path is not None else None

    def _info(self, problems: list[str]) -> RunInfo | None:
        path = self._inside(self.path / "run.json")
        if path is None:
            problems.append("run.json is missing: when the run began and how it ended is not known")
            return None
        try:
            info = self._ended.of(Stamp.of(path), lambda: RunDirectory.open(self.path).info())
        except RunStoreError as error:
            problems.append(str(error))
            return None
        if info.status == "running":  # a kill changes no file, and resuming writes this one again
            self._ended.drop()
        return info

    def settings(self) -> Settings:
        """Return its configuration, read again only when the file has changed."""
        return self._read_settings.of(Stamp.of(self._files.config_path), lambda: read_settings(self.config()))

    def notes_stamp(self) -> Stamp:
        """Return the stamp of its notes."""
        return Stamp.of(self.path / NOTES)

    def _notes(self, problems: list[str]) -> RunNotes:
        path = self._inside(self.path / NOTES)
        try:
            return self._noted.of(Stamp.of(path), lambda: RunNotes.read(self.path)) if path is not None else RunNotes()
        except RunStoreError as error:
            problems.append(str(error))
            return RunNotes()

    def _count(self, problems: list[str]) -> int | None:
        path = self._inside(self._files.episodes_path)
        if path is None:
            problems.append("rollout/episodes.sqlite is missing: there are no episodes")
            return None
        try:
            count, damage = self._counted.of(stamps_of(path), lambda: _count_in(path))
        except RunStoreError as error:  # which may pass
            problems.append(str(error))
            return None
        problems += damage
        return count

    def _open(self) -> EpisodeReader:
        path = self._inside(self._files.episodes_path)
        if path is None:
            raise Refusal(
                404, f"the run {self.name or self.path.name} has no episodes", hint="it may not have begun yet"
            )
        with self._lock:
            seen = path.stat().st_ino if self._salvaged is None else stamps_of(path)
            if self._reader is None or self._reader[0] != seen:
                reader = EpisodeReader(path)
                self._reader, self._salvaged, self._damage = (path.stat().st_ino, reader), None, ""
                self._known = _Known()
            return self._reader[1]

    def _rescue(self, damage: DamagedStoreError) -> None:
        """Read a copy of what is readable until the store changes; others may ask meanwhile."""
        path = self._files.episodes_path
        with self._rescuing:
            stamps = stamps_of(path)
            if self._salvaged is not None and self._reader is not None and self._reader[0] == stamps:
                return
            salvaged = tempfile.TemporaryDirectory(prefix="astune-view-")
            copy = Path(salvaged.name) / path.name
            try:
                found = salvage(path, copy)
                reader = EpisodeReader(copy)
            except (sqlite3.Error, OSError) as cause:  # no room for a copy
                raise damage from cause
            lost = f", at least {found.lost} could not" if found.lost else ""
            with self._lock:
                self._damage = f"{damage.message}: {found.kept} of its episodes could be read{lost}"
                self._reader, self._salvaged = (stamps, reader), salvaged
                self._known = _Known()


def _count_in(path: Path) -> tuple[int | None, list[str]]:
    """Return the number of episodes, and what is damaged."""
    try:
        with EpisodeReader(path) as reader:
            return reader.count(), []
    except DamagedStoreError as error:
        return None, [str(error)]


def _begins(info: Mapping[str, Any]) -> bool:
    """Return whether a run may not have written everything yet."""
    return info["status"] == "running" and info["steps"] is None and not info["episodes"]
