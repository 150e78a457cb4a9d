"""Checkpoints: the newest resume point, and the best model; each is complete or absent.

    checkpoints/step-000040/checkpoint.json   {"step", "score", "created_at", "metadata", "files"}
    checkpoints/step-000040/model/            Hugging Face format, loadable as it is
    checkpoints/step-000040/state/            optimiser, schedule, random generators, reader; only in the newest

A checkpoint is written into a hidden folder, flushed to the device and then renamed. Then older ones lose their state,
and are removed unless they are the best. The best may be one that a resume superseded (`superseded.py`). `files` has
the size and the CRC-32 of each file, so that a flipped bit or a truncated file is noticed when it is loaded; older
checkpoints have none. They protect against accidents, not against tampering.
"""

from __future__ import annotations

import math
import re
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from astune.runs._files import (
    FREE_SOME,
    fsync_folder,
    fsync_tree,
    is_disk_full,
    n_bytes,
    remove_tree,
    store_errors,
    write_atomic,
)
from astune.schema import AstuneError, RunStoreError

_NAME = re.compile(r"step-(\d{6,})(?:\.(\d+))?")
_MANIFEST = "checkpoint.json"
_HEADROOM = 1.05


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk. `score` is what `best` compares, usually validation success; None if not measured."""

    path: Path
    step: int
    score: float | None
    created_at: float
    metadata: dict[str, Any] = field(default_factory=dict)
    superseded: bool = False
    """True if the run has since resumed from an earlier step, so that it ran these steps again."""
    files: dict[str, list[int]] | None = None
    """Size and CRC-32 of each file, by its path below the checkpoint; None if not recorded."""

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def resumable(self) -> bool:
        return self.state.is_dir()

    def require_whole(self, *parts: Literal["model", "state"]) -> None:
        """Raise RunStoreError if a file of these parts was changed; takes half a second per GB."""
        for name, recorded in (self.files or {}).items():
            if not name.startswith(tuple(f"{part}/" for part in parts)):
                continue
            try:
                found = _size_and_crc(self.path / name)
            except OSError as cause:
                raise _damaged(self.path, f"{name}: {cause.strerror}") from cause
            if found != recorded:
                raise _damaged(self.path, f"{name} was changed after it was written")


class CheckpointStore:
    def __init__(self, folder: Path, superseded: Path | None = None) -> None:
        """Open the checkpoints in `folder`; `superseded` is where resumes move later ones, each to its own
        subfolder."""
        self.folder = folder
        self._superseded = superseded

    def save(
        self,
        step: int,
        *,
        model: Callable[[Path], object],
        state: Callable[[Path], object] | None = None,
        score: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        needs_bytes: int | None = None,
        unrated: Collection[int] = (),
    ) -> Checkpoint:
        """Write a checkpoint of `step` and tidy up the older ones. Raises RunStoreError if there is not enough space,
        or writing failed; earlier checkpoints are untouched.

        Args:
            model: writes the model into the folder that it is given.
            state: likewise, everything else that resuming needs; None for a checkpoint of the model alone.
            needs_bytes: space that must be free; by default that of the largest checkpoint of this kind so far.
            unrated: steps that are still to be measured; their models are kept.
        """
        newest = self.list()[-1:]
        if newest and newest[0].step > step:
            raise RunStoreError(
                f"a checkpoint of step {step} cannot follow that of step {newest[0].step} in {self.folder}",
                hint="rewind the run before repeating a step",
            )
        with store_errors(f"saving the checkpoint of step {step}", near=self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._check_space(step, needs_bytes or self._largest(with_state=state is not None))
            created_at = time.time()
            temporary = self.folder / f".new-step-{step:06d}"
            try:
                self._write(temporary, "model", model, step)
                if state is not None:
                    self._write(temporary, "state", state, step)
                score = score if score is not None and math.isfinite(score) else None
                made = Checkpoint(temporary, step, score, created_at, dict(metadata or {}), files=_files_in(temporary))
                (temporary / _MANIFEST).write_bytes(_manifest(made))
                fsync_tree(temporary)
                final = self._free_name(step)
                temporary.rename(final)
                fsync_folder(self.folder)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            self._tidy(unrated)
        return _read(final)

    def rate(self, step: int, score: float, *, unrated: Collection[int] = ()) -> None:
        """Set the score of a step's checkpoint, if there is one, that was measured after it was saved."""
        for checkpoint in self.list():
            if checkpoint.step == step:
                with store_errors(f"rating the checkpoint of step {step}", near=self.folder):
                    write_atomic(checkpoint.path / _MANIFEST, _manifest(replace(checkpoint, score=score)))
                    self._tidy(unrated)

    def list(self) -> list[Checkpoint]:
        """Return every checkpoint, oldest step first."""
        return [_read(entry) for entry in self._entries()]

    def _entries(self) -> list[Path]:
        found = [(match, entry) for entry in _entries(self.folder) if (match := _NAME.fullmatch(entry.name))]
        found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))
        return [entry for _, entry in found]

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint with a resume point, without verifying its files; see `resume_point`."""
        for entry in reversed(self._entries()):
            with suppress(RunStoreError):
                if (checkpoint := _read(entry)).resumable:
                    return checkpoint
        return None

    def resume_point(self, tell: Callable[[str], object]) -> Checkpoint | None:
        """Return the newest undamaged checkpoint to resume from; newer damaged ones are moved aside. Raises
        RunStoreError if there are only damaged ones.

        Args:
            tell: receives a line about each damaged one.
        """
        damaged: dict[Path, RunStoreError] = {}
        for entry in reversed(self._entries()):
            try:
                checkpoint = _read(entry)
                if not checkpoint.resumable:
                    continue
                checkpoint.require_whole("model", "state")
            except RunStoreError as error:
                damaged[entry] = error
                continue
            for path, error in damaged.items():
                with store_errors(f"moving {path} aside"):
                    path.rename(self.folder / f"damaged-{path.name}-{time.time_ns()}")
                tell(f"{error.message}; it was moved aside, resuming from step {checkpoint.step} instead")
            return checkpoint
        for error in damaged.values():
            raise error
        return None

    def best(self) -> Checkpoint | None:
        """Return the best measured model; of equals the earlier one, and a superseded one last. The newest if none was
        measured."""
        candidates = [*self.list()[::-1], *self._list_superseded()]

        def order(each: Checkpoint) -> tuple[float, bool, int]:
            return (-math.inf, False, 0) if each.score is None else (each.score, not each.superseded, -each.step)

        return max(candidates, key=order, default=None)

    def would_be_best(self, score: float) -> bool:
        """Return whether a new model of this score is to be kept: it beats the best, or equals a superseded one."""
        best = self.best()
        return best is None or best.score is None or score > best.score or (best.superseded and score == best.score)

    def rewind(self, step: int, to: Path) -> None:
        """Move the checkpoints of steps after `step` into another store's folder."""
        with store_errors(f"moving checkpoints to {to}", near=self.folder):
            for checkpoint in self.list():
                if checkpoint.step > step:
                    checkpoint.path.rename(to / checkpoint.path.name)

    def _write(self, temporary: Path, part: str, write: Callable[[Path], object], step: int) -> None:
        folder = temporary / part
        folder.mkdir(parents=True)
        try:
            write(folder)
        except AstuneError:
            raise
        except Exception as cause:
            full = is_disk_full(cause, self.folder)
            reason = "the disk is full" if full else f"{type(cause).__name__}: {cause}"
            raise RunStoreError(
                f"saving the {part} of step {step} in {self.folder}: {reason}", hint=FREE_SOME if full else ""
            ) from cause

    def _check_space(self, step: int, needs_bytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needs_bytes * _HEADROOM:
            raise RunStoreError(
                f"the checkpoint of step {step} needs {_size(needs_bytes)}, but {self.folder} has {_size(free)} left",
                hint=FREE_SOME,
            )

    def _largest(self, *, with_state: bool) -> int:
        sizes = (n_bytes(each.path) for each in self.list() if each.resumable or not with_state)
        return max(sizes, default=0)

    def _free_name(self, step: int) -> Path:
        """Return a free name beside a checkpoint of the same step, which stays until the new one is complete."""
        name = self.folder / f"step-{step:06d}"
        serial = 0
        while name.exists():
            serial += 1
            name = self.folder / f"step-{step:06d}.{serial}"
        return name

    def _superseded_folders(self) -> list[Path]:
        return [] if self._superseded is None else sorted(self._superseded.glob(f"*/{self.folder.name}"))

    def _list_superseded(self) -> list[Checkpoint]:
        stores = map(CheckpointStore, self._superseded_folders())
        return [replace(checkpoint, superseded=True) for store in stores for checkpoint in store.list()]

    def _tidy(self, unrated: Collection[int]) -> None:
        latest, best = self.latest(), self.best()
        newest = self.list()[-1]
        for checkpoint in self.list():
            keep = {each.path for each in (latest, best, newest) if each is not None}
            if checkpoint.path not in keep and checkpoint.step not in unrated:
                remove_tree(checkpoint.path)
            elif latest is not None and checkpoint.path != latest.path and checkpoint.resumable:
                checkpoint.state.rename(doomed := self.folder / f".trash-state-{checkpoint.path.name}")
                shutil.rmtree(doomed, ignore_errors=True)
        for checkpoint in self._list_superseded():
            if best is None or checkpoint.path != best.path:
                remove_tree(checkpoint.path)

    def _sweep(self) -> None:
        """Remove leftovers of an interrupted save or removal."""
        for folder in (self.folder, *self._superseded_folders()):
            for entry in _entries(folder):
                if entry.name.startswith((".new-", ".trash-")):
                    shutil.rmtree(entry, ignore_errors=True)


def checkpoint_around(path: Path) -> Checkpoint | None:
    """Return the checkpoint that a path is, or lies in; None where there is none."""
    folders = (path.resolve(), *path.resolve().parents)
    found = next((each for each in folders if _NAME.fullmatch(each.name) and (each / _MANIFEST).is_file()), None)
    return None if found is None or not path.exists() else _read(found)


def _read(path: Path) -> Checkpoint:
    try:
        manifest = orjson.loads((path / _MANIFEST).read_bytes())
        known = (manifest[name] for name in ("step", "score", "created_at", "metadata"))
        return Checkpoint(path, *known, files=manifest.get("files"))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as cause:
        raise _damaged(path, repr(cause)) from cause


def _damaged(path: Path, reason: str) -> RunStoreError:
    return RunStoreError(
        f"the checkpoint {path} is damaged: {reason}", hint="remove that folder to resume from an earlier one"
    )


def _files_in(folder: Path) -> dict[str, list[int]]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): _size_and_crc(file) for file in files}


def _size_and_crc(file: Path) -> list[int]:
    size, crc = 0, 0
    with file.open("rb") as stream:
        while piece := stream.read(2**20):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return [size, crc]


def _manifest(checkpoint: Checkpoint) -> bytes:
    fields = {name: getattr(checkpoint, name) for name in ("step", "score", "created_at", "metadata", "files")}
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
