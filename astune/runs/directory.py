"""A run's directory: where everything that a run records lies, and who may write it.

    launcher_record/<experiment>/<YYYY_MM_DD_HH_MM_SS>/
        run.json               experiment, kind, status, when it began and ended; a JSON object of `RunInfo`
        config.yaml            the resolved configuration
        backup/                sources, versions, git state
        rollout/episodes.sqlite
        rollout/vocabulary.json.zst
        metrics.jsonl
        checkpoints/  plots/
        tensorboard/, wandb/, ...     what trackers write
        superseded/            what a resume ran again
        companions/NAME.log    where there are companions
        weights/               what servers are given, while the run goes on

The folder appears under its name only when it is complete. `status` is `running`, `finished`, `failed` or
`interrupted`; a run whose status is `running` but whose lock nobody holds was killed.
"""

from __future__ import annotations

import datetime
import re
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import orjson

from astune.runs._files import fsync_folder, fsync_tree, n_bytes, remove_tree, store_errors, write_atomic
from astune.runs._lock import RunLock
from astune.runs.checkpoints import CheckpointStore
from astune.runs.episode_store import EpisodeStore
from astune.runs.episodes import EpisodeReader
from astune.runs.info import RUN_FORMAT, RunInfo, RunKind, read_info
from astune.runs.metrics import MetricsFollower, MetricsLine, MetricsLog, read_metrics
from astune.runs.superseded import SUPERSEDED, Superseded, supersede
from astune.runs.vocabulary import read_vocabulary, write_vocabulary
from astune.schema import RunStoreError, Vocabulary

_INFO = "run.json"
_EPISODES = "rollout/episodes.sqlite"
_FOLDERS = ("backup", "rollout", "checkpoints", "plots")
_TIME = "%Y_%m_%d_%H_%M_%S"
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]|^\.{0,2}$")
_NAME_BYTES = 200


class RunDirectory:
    """One run's folder. Made by `create` or `open`; a writer closes it, which lets another process go on."""

    def __init__(self, path: Path, lock: RunLock) -> None:
        self.path = path
        self.follower: MetricsFollower | None = None
        """Receives the metrics that are recorded from here on."""
        self._lock = lock

    @classmethod
    def create(cls, record_dir: Path, experiment_name: str, kind: RunKind = "training") -> Self:
        """Make the folder of a new run, and hold its lock.

        Raises:
            RunStoreError: the folder cannot be written, or the name cannot be a folder's.
        """
        if _UNSAFE.search(experiment_name) or len(experiment_name.encode(errors="replace")) > _NAME_BYTES:
            raise RunStoreError(
                f"{experiment_name[:_NAME_BYTES]!r} cannot be a folder's name", hint="choose another experiment_name"
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
        return cls(experiment / name, lock)

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Self:
        """Open a run to read it, or to resume writing it, whatever ended it.

        Raises:
            RunStoreError: there is no run at `path`, another process writes it, or it cannot be resumed.
        """
        path = Path(path).resolve()
        if not (path / _INFO).is_file():
            what_is_left = f"a run's folder holds {_INFO}; `astune view` shows what is left of a run that lost it"
            raise RunStoreError(f"{path} is no run", hint=what_is_left)
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
        """A run to read whatever state it is in; what cannot be read is told when it is asked for."""
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
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints", self.path / SUPERSEDED)

    def episodes(self) -> EpisodeReader:
        """A reader of the recorded episodes; close it."""
        return EpisodeReader(self.episodes_path)

    def metrics(self) -> list[MetricsLine]:
        return read_metrics(self.metrics_path)

    def open_episodes(self) -> EpisodeStore:
        """The writer of this run's episodes; close it."""
        self._must_be_writer()
        return EpisodeStore(self.episodes_path)

    def open_metrics(self) -> MetricsLog:
        """The writer of this run's metrics; close it."""
        self._must_be_writer()
        return MetricsLog(self.metrics_path, self.follower)

    def save_config(self, text: str) -> None:
        """Write the resolved configuration."""
        self._must_be_writer()
        write_atomic(self.config_path, text.encode())

    def save_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Write what the ids of this run's episodes read as."""
        self._must_be_writer()
        write_vocabulary(self.vocabulary_path, vocabulary)

    def vocabulary(self) -> Vocabulary | None:
        return read_vocabulary(self.vocabulary_path)

    def save_plot(self, name: str, data: bytes) -> Path:
        """Write a picture of this run; allowed to readers, since it can always be drawn again."""
        with store_errors(f"writing {self.plots}"):
            self.plots.mkdir(exist_ok=True)
        write_atomic(self.plots / name, data)
        return self.plots / name

    def info(self) -> RunInfo:
        """What is known of the run as a whole; `killed` where it never ended and nobody writes it."""
        info = read_info(self.path / _INFO)
        if info.status == "running" and not self._lock.held and self.writer_pid() is None:
            return replace(info, status="killed")
        return info

    def finish(self, status: Literal["finished", "failed", "interrupted"], message: str = "") -> None:
        """Record how the run ended."""
        self._must_be_writer()
        self._write_info(replace(self.info(), status=status, message=message, ended_at=time.time()))

    def rewind(self, step: int) -> Superseded | None:
        """Make everything recorded end with `step`; before stores are opened. What came later moves to `superseded/`.

        A held-out measurement of `step` itself that was not completed goes too.

        Returns:
            what was moved; None where nothing had been recorded after `step`.
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
            )

    def require_resumable(self) -> None:
        """Raise RunStoreError where the run is one that is never resumed."""
        info = self.info()
        if info.kind == "debug":
            raise RunStoreError(
                f"{self.path} is a debug run, which is over when its episodes are",
                hint="name a run that trains, or start one without --resume",
            )
        if self.path.parent.name == SUPERSEDED:
            raise RunStoreError(
                f"{self.path} is what a resume ran again, and has no resume point",
                hint=f"resume the run itself: {self.path.parents[1]}",
            )
        if info.cleaned:
            raise RunStoreError(
                f"{self.path} was cleaned: what resuming needs is gone",
                hint="start a new run; its model.path may be this run's model",
            )

    def removable(self) -> dict[Path, int]:
        """Every folder that only resuming needs, with its bytes: optimiser states, and all models but the best."""
        best = self.checkpoints.best()
        if best is None:
            return {}
        stores = [self.checkpoints.folder, *(run / "checkpoints" for run in self.superseded())]
        entries = [path for store in stores if store.is_dir() for path in sorted(store.iterdir())]
        folders = [path for path in entries if path.is_dir() and path != best.path]
        folders += [path for path in (best.state, self.path / "weights") if path.is_dir()]
        return {path: n_bytes(path) for path in folders}

    def clean(self) -> None:
        """Remove what is `removable`; the run cannot be resumed then.

        Raises:
            RunStoreError: a process writes the run.
        """
        self._lock.acquire()
        try:
            self._write_info(replace(self.info(), cleaned=True))
            with store_errors(f"cleaning {self.path}"):
                for folder in self.removable():
                    # A part of a checkpoint must not be taken for one; that of the best stays one without its state.
                    shutil.rmtree(folder) if folder.name == "state" else remove_tree(folder)
        finally:
            self._lock.release()

    def superseded(self) -> list[Path]:
        """Runs of their own that hold what resumes ran again, oldest first."""
        return sorted((path for path in (self.path / SUPERSEDED).glob("[0-9]*")), key=lambda path: int(path.name))

    def writer_pid(self) -> int | None:
        """The process that writes this run now; None where nobody does."""
        return RunLock.holder(self.path / "run.lock")

    def close(self) -> None:
        """Give up the lock. Idempotent."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _must_be_writer(self) -> None:
        if not self._lock.held:
            raise RunStoreError(f"the run {self.path} is open for reading only", hint="open it with write=True")

    def _write_info(self, info: RunInfo) -> None:
        write_atomic(self.path / _INFO, orjson.dumps(asdict(info), option=orjson.OPT_INDENT_2))


def is_run(path: Path) -> bool:
    """Return whether it is the folder of a run, also of one that has only its own file or its episodes left."""
    return any((path / left).is_file() for left in (_INFO, _EPISODES))


def outermost_run(path: Path) -> Path:
    """The run that holds the run at `path`, which may be what a resume moved to `superseded/`; else the run itself."""
    return next((parent for parent in reversed(path.resolve().parents) if is_run(parent)), path)


def runs_below(folder: Path) -> list[Path]:
    """Every run in a folder of experiments or of one experiment, oldest first."""
    found = {path.parent for pattern in (f"*/{_INFO}", f"*/*/{_INFO}") for path in folder.glob(pattern)}
    found |= {path.parents[1] for pattern in (f"*/{_EPISODES}", f"*/*/{_EPISODES}") for path in folder.glob(pattern)}
    return sorted((run for run in found if not run.name.startswith(".") and is_run(run)), key=_age)


def _age(run: Path) -> tuple[float, str]:
    """Sorts by the time of creation, and what cannot be read first; local time in names is no order."""
    try:
        return read_info(run / _INFO).created_at, run.name
    except RunStoreError:
        return 0.0, run.name


def resolve_run(
    path: str | Path | None,
    *,
    record_dir: Path = Path("launcher_record"),
    prefer: Literal["training", "model"] | None = None,
) -> Path:
    """The folder of the run that is meant.

    A run's folder or anything inside it is that run; a folder of one experiment, or of all of them, is the newest
    run below it; the name of an experiment is looked up in `record_dir`; None is the newest run of all.

    Args:
        prefer: where several runs could be meant, the newest that trains, or that has a model; the newest of all where
            there is none.

    Raises:
        RunStoreError: no run is there; says where was looked.
    """
    candidates = [Path(record_dir)] if path is None else [Path(path), Path(record_dir) / path]
    for candidate in candidates:
        for folder in (candidate.resolve(), *candidate.resolve().parents):
            if candidate.exists() and is_run(folder):
                return folder
        runs = runs_below(candidate.resolve())
        if runs:
            return next((run for run in reversed(runs) if _is_preferred(run, prefer)), runs[-1])
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise RunStoreError(f"no run found in {looked}", hint="name a run's folder, or an experiment's")


def _is_preferred(path: Path, prefer: Literal["training", "model"] | None) -> bool:
    if prefer is None or not (path / _INFO).is_file():
        return prefer is None
    run = RunDirectory.look_at(path)
    return run.checkpoints.best() is not None if prefer == "model" else run.info().kind == "training"
