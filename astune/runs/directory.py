"""A run's directory: where everything that a run records lies, and who may write it.

    launcher_record/<experiment>/<YYYY_MM_DD_HH_MM_SS>/
        run.json               {"format", "experiment", "created_at", "status", "message", "ended_at"}
        config.yaml            the resolved configuration
        backup/                sources, versions, git state
        rollout/episodes.sqlite
        rollout/vocabulary.json.zst
        metrics.jsonl
        tensorboard/  checkpoints/  plots/
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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import orjson

from astune.runs._files import fsync_folder, fsync_tree, store_errors, write_atomic
from astune.runs._lock import RunLock
from astune.runs.checkpoints import CheckpointStore
from astune.runs.episode_store import EpisodeStore
from astune.runs.episodes import EpisodeReader
from astune.runs.metrics import MetricsLine, MetricsLog, read_metrics
from astune.runs.vocabulary import read_vocabulary, write_vocabulary
from astune.schema import RunStoreError, Vocabulary

RUN_FORMAT = 1
RunStatus = Literal["running", "finished", "failed", "interrupted", "killed"]
_INFO = "run.json"
_EPISODES = "rollout/episodes.sqlite"
_FOLDERS = ("backup", "rollout", "tensorboard", "checkpoints", "plots")
_TIME = "%Y_%m_%d_%H_%M_%S"
_UNSAFE = re.compile(r"[/\\\0]|^\.{0,2}$")


@dataclass(frozen=True, slots=True)
class RunInfo:
    experiment: str
    created_at: float
    status: RunStatus = "running"
    message: str = ""
    ended_at: float | None = None
    format: int = RUN_FORMAT


class RunDirectory:
    """One run's folder. Made by `create` or `open`; a writer closes it, which lets another process go on."""

    def __init__(self, path: Path, lock: RunLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, record_dir: Path, experiment_name: str) -> Self:
        """Make the folder of a new run, and hold its lock.

        Raises:
            RunStoreError: the folder cannot be written, or the name cannot be a folder's.
        """
        if _UNSAFE.search(experiment_name):
            raise RunStoreError(f"{experiment_name!r} cannot be a folder's name", hint="choose another experiment_name")
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
                info = RunInfo(experiment=experiment_name, created_at=now)
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
        """Open a run to read it, or to go on writing it, whatever ended it.

        Raises:
            RunStoreError: there is no run at `path`, or another process writes it.
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
            run._lock.acquire()
            run._write_info(RunInfo(info.experiment, info.created_at))
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
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints")

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
        return MetricsLog(self.metrics_path, self.tensorboard)

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
        try:
            info = RunInfo(**orjson.loads((self.path / _INFO).read_bytes()))
        except (OSError, orjson.JSONDecodeError, TypeError) as cause:
            raise RunStoreError(f"{self.path / _INFO} cannot be read: {cause!r}") from cause
        if info.status == "running" and not self._lock.held and self.writer_pid() is None:
            return RunInfo(info.experiment, info.created_at, "killed", format=info.format)
        return info

    def finish(self, status: Literal["finished", "failed", "interrupted"], message: str = "") -> None:
        """Record how the run ended."""
        self._must_be_writer()
        info = self.info()
        self._write_info(RunInfo(info.experiment, info.created_at, status, message, time.time()))

    def rewind(self, step: int) -> None:
        """Make everything recorded end with `step`, as if later steps had never run; before stores are opened.

        A held-out measurement of `step` itself that was not completed goes too.
        """
        self._must_be_writer()
        self.checkpoints.rewind(step)
        with self.open_metrics() as metrics:
            metrics.rewind(step)
            measured = metrics.find(step, "validation") is not None
        with self.open_episodes() as episodes:
            episodes.rewind(step, measured=measured)

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
    """Whether it is the folder of a run, also of one that has only its own file or its episodes left."""
    return any((path / left).is_file() for left in (_INFO, _EPISODES))


def runs_below(folder: Path) -> list[Path]:
    """Every run in a folder of experiments or of one experiment, oldest first."""
    found = {path.parent for pattern in (f"*/{_INFO}", f"*/*/{_INFO}") for path in folder.glob(pattern)}
    found |= {path.parents[1] for pattern in (f"*/{_EPISODES}", f"*/*/{_EPISODES}") for path in folder.glob(pattern)}
    return sorted((run for run in found if not run.name.startswith(".")), key=_age)


def _age(run: Path) -> tuple[float, str]:
    """Sorts by the time of creation, and what cannot be read first; local time in names is no order."""
    try:
        return float(orjson.loads((run / _INFO).read_bytes())["created_at"]), run.name
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0, run.name


def resolve_run(path: str | Path | None, *, record_dir: Path = Path("launcher_record")) -> Path:
    """The folder of the run that is meant.

    A run's folder or anything inside it is that run; a folder of one experiment, or of all of them, is the newest
    run below it; the name of an experiment is looked up in `record_dir`; None is the newest run of all.

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
            return runs[-1]
    looked = " and ".join(str(candidate) for candidate in candidates)
    raise RunStoreError(f"no run found in {looked}", hint="name a run's folder, or an experiment's")
