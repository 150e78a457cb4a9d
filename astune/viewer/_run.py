"""A run as the viewer sees it: opened as far as it goes, with a list of what is missing.

It writes nothing into a run. Beside the episodes of one that is being written, SQLite may keep its two files."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from astune.runs import DamagedStoreError, EpisodeReader, MetricsLine, RunDirectory, RunInfo, Stamp, salvage, stamps_of
from astune.schema import RunStoreError, Vocabulary
from astune.viewer._answers import Refusal
from astune.viewer._folder import Folder
from astune.viewer._metrics import MetricsFile, MetricsSoFar, last_of
from astune.viewer._search import TextSearch

T = TypeVar("T")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ViewedRun:
    """Safe to ask from several threads.

    Args:
        name: what the run is called in the folder.
    """

    def __init__(self, name: str, path: Path, folder: Folder) -> None:
        self.name = name
        self.path = path
        self._folder = folder
        self._files = RunDirectory.look_at(path)
        self._metrics = MetricsFile(self._files.metrics_path)
        self._lock = threading.Lock()
        self._rescuing = threading.Lock()
        self._reader: tuple[object, EpisodeReader] | None = None
        self._search = TextSearch()
        self._salvaged: tempfile.TemporaryDirectory[str] | None = None
        self._damage = ""
        self._vocabulary: tuple[Stamp, Vocabulary | None] | None = None
        self._newest: tuple[Stamp, MetricsLine | None] | None = None
        self._ended: tuple[Stamp, RunInfo] | None = None
        self._model: tuple[Stamp, dict[str, Any]] | None = None
        self._counted: tuple[tuple[Stamp, Stamp], int | None, str] | None = None

    def info(self) -> dict[str, Any]:
        """What a list of runs shows of it; each file is read again only when it has changed."""
        problems: list[str] = []
        info = self._info(problems)
        last = self._last_line()
        episodes = self._count(problems)
        begins = info is not None and info.status == "running" and last is None and not episodes
        return {
            "run": self.name,
            "experiment": info.experiment if info is not None else self.path.parent.name,
            "name": self.path.name,
            "created_at": info.created_at if info is not None else None,
            "ended_at": info.ended_at if info is not None else None,
            "status": info.status if info is not None else "killed",
            "message": info.message if info is not None else "",
            **self._settings([] if begins else problems),
            "steps": last.step if last is not None else None,
            "episodes": episodes,
            "reward": last.metrics.get("reward/mean") if last is not None else None,
            "problems": problems,
        }

    def problems(self, info: Mapping[str, Any]) -> list[str]:
        """What is missing or damaged, in words; a run that begins may not have written everything yet.

        Args:
            info: what `info` told.
        """
        begins = info["status"] == "running" and info["steps"] is None and not info["episodes"]
        found: list[str] = [*info["problems"]]
        if self._damage:
            found.append(self._damage)
        try:
            if self.vocabulary() is None and not begins:
                found.append("rollout/vocabulary.json.zst is missing: tokens are shown as their ids")
        except RunStoreError as error:
            found.append(str(error))
        metrics = self.metrics()
        if metrics.damaged:
            found.append(f"metrics.jsonl cannot be read in line {', '.join(map(str, metrics.damaged))}")
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
            return path.read_text(encoding="utf-8", errors="replace") if path is not None else ""
        except OSError:
            return ""

    def metrics(self) -> MetricsSoFar:
        return self._metrics.read() if self._metrics_path is not None else MetricsSoFar()

    def vocabulary(self) -> Vocabulary | None:
        """What its tokens read as.

        Raises:
            RunStoreError: the file is damaged.
        """
        path = self._inside(self._files.vocabulary_path)
        if path is None:
            return None
        with self._lock:
            stamp = Stamp.of(path)
            if self._vocabulary is None or self._vocabulary[0] != stamp:
                self._vocabulary = stamp, self._files.vocabulary()
            return self._vocabulary[1]

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
        return self.ask(lambda reader: self._search.matching(reader, text))

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
        stamp = Stamp.of(path)
        if self._newest is None or self._newest[0] != stamp:
            self._newest = stamp, last_of(path, "train")
        return self._newest[1]

    def _info(self, problems: list[str]) -> RunInfo | None:
        path = self._inside(self.path / "run.json")
        if path is None:
            problems.append("run.json is missing")
            return None
        stamp = Stamp.of(path)
        if self._ended is not None and self._ended[0] == stamp:
            return self._ended[1]
        try:
            info = RunDirectory.open(self.path).info()
        except RunStoreError as error:
            problems.append(str(error))
            return None
        self._ended = (stamp, info) if info.status != "running" else None  # who goes on with it writes the file anew
        return info

    def _settings(self, problems: list[str]) -> dict[str, str | None]:
        """Backbone and model, as the configuration names them."""
        stamp = Stamp.of(self._files.config_path)
        if self._model is None or self._model[0] != stamp:
            try:
                root = yaml.load(self.config(), _Loader)["astune"]
                self._model = stamp, {"backbone": str(root["backbone"]), "model": str(root["model"]["path"])}
            except (yaml.YAMLError, KeyError, TypeError):
                self._model = stamp, {"backbone": None, "model": None}
        if self._model[1]["model"] is None:
            problems.append("config.yaml is missing, or does not name a model")
        return self._model[1]

    def _count(self, problems: list[str]) -> int | None:
        path = self._inside(self._files.episodes_path)
        if path is None:
            problems.append("rollout/episodes.sqlite is missing: there are no episodes")
            return None
        stamps = stamps_of(path)
        if self._counted is None or self._counted[0] != stamps:
            try:
                with EpisodeReader(path) as reader:
                    self._counted = stamps, reader.count(), ""
            except DamagedStoreError as error:
                self._counted = stamps, None, str(error)
            except RunStoreError as error:  # which may pass
                problems.append(str(error))
                return None
        _, count, problem = self._counted
        problems += [problem] if problem else []
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
                self._search = TextSearch()
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
                self._damage = f"{damage.message}: {found.kept} episodes could be read{lost}"
                self._reader, self._salvaged = (stamps, reader), salvaged
                self._search = TextSearch()
