"""A run's directory: the files of a run, and who may write them.

    launcher_record/<experiment>/<YYYY_MM_DD_HH_MM_SS>/
        run.json               experiment, kind, status, when it began and ended; a JSON object of `RunInfo`
        config.yaml            the resolved configuration
        backup/                sources, versions, git state
        rollout/episodes.sqlite
        rollout/vocabulary.json.zst
        rollout/origin.json    what the episodes of the newest step were sampled with, as a digest
        metrics.jsonl
        checkpoints/  plots/
        tensorboard/, wandb/, ...     what trackers write
        superseded/            steps that a resume ran again
        companions/NAME.log    where there are companions
        weights/               weights sent to servers, while the run is active

The folder gets its final name only when it is complete. `status` is `running`, `finished`, `failed` or `interrupted`; a
run whose status is `running` but whose lock is free was killed.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, Self

import orjson

from astune.runs._files import fsync_folder, fsync_tree, n_bytes, remove_tree, store_errors, write_atomic
from astune.runs._lock import RunLock
from astune.runs.checkpoints import CheckpointStore
from astune.runs.episode_store import NOTHING, EpisodeStore
from astune.runs.episodes import EpisodeReader
from astune.runs.info import RUN_FORMAT, RunInfo, RunKind, read_info
from astune.runs.metrics import MetricsFollower, MetricsLine, MetricsLog, read_metrics
from astune.runs.superseded import SUPERSEDED, Superseded, supersede
from astune.runs.vocabulary import read_vocabulary, write_vocabulary
from astune.schema import RunStoreError, Vocabulary

RECORD_DIR = Path("launcher_record")
"""The folder of runs where the configuration names none, below the working directory."""
_INFO = "run.json"
_EPISODES = "rollout/episodes.sqlite"
_FOLDERS = ("backup", "rollout", "checkpoints", "plots")
_TIME = "%Y_%m_%d_%H_%M_%S"
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]|^\.{0,2}$")
_NAME_BYTES = 200


class RunDirectory:
    """A run's folder, from `create` or `open`. A writer must close it to let another process continue."""

    def __init__(self, path: Path, lock: RunLock) -> None:
        self.path = path
        self.follower: MetricsFollower | None = None
        """Receives the metrics recorded from here on."""
        self._lock = lock
        self._written: RunInfo | None = None
        """The state of the run as this writer wrote it; None for a reader."""

    @classmethod
    def create(cls, record_dir: Path, experiment_name: str, kind: RunKind = "training") -> Self:
        """Create the folder of a new run, and hold its lock. Raises RunStoreError if the folder cannot be written, or
        the name is not a valid folder name."""
        if _UNSAFE.search(experiment_name) or len(experiment_name.encode(errors="replace")) > _NAME_BYTES:
            raise RunStoreError(
                f"{experiment_name[:_NAME_BYTES]!r} is not a valid folder name", hint="choose another experiment_name"
            )
        experiment = Path(record_dir).resolve() / experiment_name
        with store_errors(f"creating a run in {experiment}"):
            experiment.mkdir(parents=True, exist_ok=True)
            now = time.time()
            stamp = datetime.datetime.fromtimestamp(now).strftime(_TIME)
            serial = 0
            while True:
                name = stamp if not serial else f"{stamp}_{serial:03d}"
                temporary = experiment / f".new-{name}"
                try:
                    temporary.mkdir()
                except FileExistsError:
                    serial += 1
                    continue
                if not (experiment / name).exists():
                    break
                temporary.rmdir()
                serial += 1
            lock = RunLock(temporary / "run.lock")
            try:
                lock.acquire()
                for folder in _FOLDERS:
                    (temporary / folder).mkdir()
                EpisodeStore(temporary / _EPISODES).close()
                info = RunInfo(experiment=experiment_name, created_at=now, kind=kind)
                (temporary / _INFO).write_bytes(orjson.dumps(asdict(info), option=orjson.OPT_INDENT_2))
                fsync_tree(temporary)
                temporary.rename(experiment / name)
                fsync_folder(experiment)
            except BaseException:
                lock.release()
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        run = cls(experiment / name, lock)
        run._written = info
        return run

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Self:
        """Open a run to read it, or to resume writing it, however it ended. Raises RunStoreError if there is no run at
        `path`, another process writes it, or it cannot be resumed."""
        path = Path(path).resolve()
        if not (path / _INFO).is_file():
            what_is_left = f"a run's folder contains {_INFO}; `astune view` shows what is left of a run that lost it"
            raise RunStoreError(f"{path} is not a run", hint=what_is_left)
        run = cls.look_at(path)
        info = run.info()
        if info.format != RUN_FORMAT:
            raise RunStoreError(
                f"{path} is a run of format {info.format}, this version of astune reads {RUN_FORMAT}",
                hint="upgrade astune, or read the run with the version that wrote it",
            )
        if write:
            run.require_resumable()
            run._lock.acquire()
            run._write_info(RunInfo(info.experiment, info.created_at, kind=info.kind))
        return run

    @classmethod
    def look_at(cls, path: Path) -> Self:
        """Open a run for reading in whatever state it is; unreadable parts are reported on access."""
        return cls(path, RunLock(path / "run.lock"))

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def backup(self) -> Path:
        return self.path / "backup"

    @property
    def rollout(self) -> Path:
        return self.path / "rollout"

    @property
    def episodes_path(self) -> Path:
        return self.path / _EPISODES

    @property
    def vocabulary_path(self) -> Path:
        return self.rollout / "vocabulary.json.zst"

    @property
    def origin_path(self) -> Path:
        return self.rollout / "origin.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints", self.path / SUPERSEDED)

    def episodes(self) -> EpisodeReader:
        """Return a reader of the recorded episodes; close it after use."""
        return EpisodeReader(self.episodes_path)

    def metrics(self) -> list[MetricsLine]:
        return read_metrics(self.metrics_path)

    def open_episodes(self) -> EpisodeStore:
        """Return the writer of this run's episodes; close it after use."""
        self._must_be_writer()
        return EpisodeStore(self.episodes_path)

    def open_metrics(self) -> MetricsLog:
        """Return the writer of this run's metrics; close it after use."""
        self._must_be_writer()
        return MetricsLog(self.metrics_path, self.follower)

    def save_config(self, text: str) -> None:
        """Write the resolved configuration."""
        self._must_be_writer()
        write_atomic(self.config_path, text.encode())

    def save_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Write the vocabulary that decodes this run's episodes."""
        self._must_be_writer()
        write_vocabulary(self.vocabulary_path, vocabulary)

    def vocabulary(self) -> Vocabulary | None:
        return read_vocabulary(self.vocabulary_path)

    def save_plot(self, name: str, data: bytes) -> Path:
        """Write a plot of this run; readers may do so too, since it can always be redrawn."""
        with store_errors(f"writing {self.plots}"):
            self.plots.mkdir(exist_ok=True)
        write_atomic(self.plots / name, data)
        return self.plots / name

    def info(self) -> RunInfo:
        """Return the state of the run as a whole; its status is `killed` if it did not end and has no writer."""
        info = read_info(self.path / _INFO)
        if info.status == "running" and not self._lock.held and self.writer_pid() is None:
            return replace(info, status="killed")
        return info

    def finish(self, status: Literal["finished", "failed", "interrupted"], message: str = "") -> None:
        """Record how the run ended."""
        self._must_be_writer()
        info = self._written or self.info()  # the file may have been removed meanwhile
        self._write_info(replace(info, status=status, message=message, ended_at=time.time()))

    def rewind(self, step: int, keep: Mapping[str, int] = NOTHING) -> Superseded | None:
        """Discard everything recorded after `step`, before stores are opened, by moving it to `superseded/`.

        An incomplete validation measurement of `step` itself is moved too; `keep` stays, see `EpisodeStore.rewind`.

        Returns:
            what was moved; None if nothing had been recorded after `step`.
        """
        self._must_be_writer()
        start = f"after step {step}" if step >= 0 else "from the beginning"
        message = f"the run resumed {start} and ran these steps again"
        with MetricsLog(self.metrics_path) as metrics, self.open_episodes() as episodes:
            return supersede(
                self.path,
                step,
                files=[self.config_path, self.vocabulary_path],
                info=replace(self.info(), status="interrupted", message=message, ended_at=time.time()),
                metrics=metrics,
                episodes=episodes,
                checkpoints=self.checkpoints,
                keep=keep,
            )

    def require_resumable(self) -> None:
        """Raise RunStoreError if the run cannot be resumed."""
        info = self.info()
        if info.kind == "debug":
            raise RunStoreError(
                f"{self.path} is a debug run, which cannot be resumed",
                hint="choose a training run, or start one without --resume",
            )
        if self.path.parent.name == SUPERSEDED:
            raise RunStoreError(
                f"{self.path} holds superseded steps of a run, and has no resume point",
                hint=f"resume the run itself: {self.path.parents[1]}",
            )
        if info.cleaned:
            raise RunStoreError(
                f"{self.path} was cleaned, so its resume point is gone",
                hint="start a new run; its model.path may be this run's model",
            )

    def removable(self) -> dict[Path, int]:
        """Return every folder that only resuming needs, with its bytes: optimiser states, and all models except the
        best."""
        best = self.checkpoints.best()
        if best is None:
            return {}
        stores = [self.checkpoints.folder, *(run / "checkpoints" for run in self.superseded())]
        entries = [path for store in stores if store.is_dir() for path in sorted(store.iterdir())]
        folders = [path for path in entries if path.is_dir() and path != best.path]
        folders += [path for path in (best.state, self.path / "weights") if path.is_dir()]
        return {path: n_bytes(path) for path in folders}

    def clean(self) -> None:
        """Remove what is `removable`; the run cannot be resumed then. Raises RunStoreError if a process is writing the
        run."""
        self._lock.acquire()
        try:
            self._write_info(replace(self.info(), cleaned=True))
            with store_errors(f"cleaning {self.path}"):
                for folder in self.removable():
                    # A partly removed checkpoint must not look complete; the best one remains valid without its state.
                    shutil.rmtree(folder) if folder.name == "state" else remove_tree(folder)
        finally:
            self._lock.release()

    def superseded(self) -> list[Path]:
        """Return the runs with superseded steps, oldest first."""
        return sorted((path for path in (self.path / SUPERSEDED).glob("[0-9]*")), key=lambda path: int(path.name))

    def writer_pid(self) -> int | None:
        """Return the process that is writing this run; None if there is none."""
        return RunLock.holder(self.path / "run.lock")

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _must_be_writer(self) -> None:
        if not self._lock.held:
            raise RunStoreError(f"the run {self.path} is open for reading only", hint="open it with write=True")

    def _write_info(self, info: RunInfo) -> None:
        write_atomic(self.path / _INFO, orjson.dumps(asdict(info), option=orjson.OPT_INDENT_2))
        self._written = info


def is_run(path: Path) -> bool:
    """Return whether it is a run's folder, even with only its run.json or its episodes left."""
    return any((path / left).is_file() for left in (_INFO, _EPISODES))


def outermost_run(path: Path) -> Path:
    """Return the run that contains the run at `path`, which may be in `superseded/`; else the run itself."""
    return next((parent for parent in reversed(path.resolve().parents) if is_run(parent)), path)


def runs_below(folder: Path) -> list[Path]:
    """Return every run in a folder of experiments or of one experiment, oldest first."""
    experiments = _folders(folder)
    found = [*experiments, *(run for experiment in experiments for run in _folders(experiment))]
    return sorted((run for run in found if not run.name.startswith(".") and is_run(run)), key=_age)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _age(run: Path) -> tuple[float, str]:
    """Sort key by time of creation, unreadable runs first; local times in names do not sort reliably."""
    try:
        return read_info(run / _INFO).created_at, run.name
    except RunStoreError:
        return 0.0, run.name


def resolve_run(
    path: str | Path | None,
    *,
    record_dir: Path = RECORD_DIR,
    prefer: Literal["training", "model"] | None = None,
) -> Path:
    """Return the folder of the run that the user means.

    A run's folder or anything inside it is that run; a folder of one experiment, or of all of them, is the newest
    run below it; the name of an experiment is looked up in `record_dir`; None is the newest run of all.

    Args:
        prefer: if several runs match, the newest that trains, or that has a model; else the newest of all.

    Raises:
        RunStoreError: there is no such run; the message names the folders that were searched. An empty text, as of a
            shell's variable that is not set, names none.
    """
    if path == "":
        raise RunStoreError("the run's name is empty", hint="give the folder of a run or of an experiment")
    candidates = [Path(record_dir)] if path is None else [Path(path), Path(record_dir) / path]
    for candidate in candidates:
        for folder in (candidate.resolve(), *candidate.resolve().parents):
            if candidate.exists() and is_run(folder):
                return folder
        runs = runs_below(candidate.resolve())
        if runs:
            return next((run for run in reversed(runs) if _is_preferred(run, prefer)), runs[-1])
    looked = " and ".join(str(candidate) for candidate in candidates)
    there = sorted({run.parent.name for run in runs_below(Path(record_dir).resolve())})
    named = difflib.get_close_matches(candidates[0].name, there, n=3, cutoff=0.5) or there[:5]
    known = f"; {record_dir} contains {', '.join(named)}" if named else ""
    raise RunStoreError(f"no run found in {looked}", hint=f"give the folder of a run or of an experiment{known}")


def _is_preferred(path: Path, prefer: Literal["training", "model"] | None) -> bool:
    if prefer is None or not (path / _INFO).is_file():
        return prefer is None
    run = RunDirectory.look_at(path)
    return run.checkpoints.best() is not None if prefer == "model" else run.info().kind == "training"
