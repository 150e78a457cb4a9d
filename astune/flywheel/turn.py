"""A turn's folder: its inputs by content, and one file for each stage that is done.

    turns/0003-5f2a90c1/turn.json       inputs: digests of feedback, settings, model and sets; what is new
    turns/0003-5f2a90c1/filtered.json   a stage's result; a stage is done where its file is there
    turns/0003-5f2a90c1/done.json       the last one: promoted or not, and reported

Files appear whole or not at all. A killed turn resumes at the first stage whose file is missing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.feedback.interaction import digest_of
from astune.runs import RunLock, write_atomic
from astune.schema import RunStoreError

_NAME = re.compile(r"(\d{4,})-[0-9a-f]{8}")
_INPUTS, _DONE, _ABANDONED = "turn", "done", "abandoned"
_WITHOUT_TEXT = {
    f"{name}.json" for name in (_INPUTS, "runs", "trained", "trained_questions", "decision", _DONE, _ABANDONED)
}
"""Files that hold no text of users."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the flywheel; `folder` holds all that it wrote but its run."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def number(self) -> int:
        return int(self.name.split("-")[0])

    @property
    def inputs(self) -> dict[str, Any]:
        return self._read(_INPUTS)

    @property
    def feedback(self) -> set[str]:
        """The digests of the conversations and ratings that it may learn from."""
        inputs = self.inputs
        return {*inputs["interactions"], *inputs["ratings"]}

    @property
    def done(self) -> bool:
        return self.has(_DONE)

    @property
    def over(self) -> bool:
        """Done, or abandoned since the settings changed under it."""
        return self.done or self.has(_ABANDONED)

    def finish(self, promoted: bool) -> None:
        self.once(_DONE, lambda: {"promoted": promoted})

    def abandon(self, why: str) -> None:
        self.once(_ABANDONED, lambda: {"why": why})

    def erase(self) -> None:
        """Delete every file that may hold text of users."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in _WITHOUT_TEXT:
                path.unlink()

    def has(self, stage: str) -> bool:
        return (self.folder / f"{stage}.json").is_file()

    def result(self, stage: str) -> dict[str, Any]:
        return self._read(stage)

    def once(self, stage: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stage's result, computed unless it exists; whatever `work` wrote is on disk first."""
        if not self.has(stage):
            self.write(f"{stage}.json", json.dumps(work(), indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        return self._read(stage)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
        return path

    def _read(self, stage: str) -> dict[str, Any]:
        path = self.folder / f"{stage}.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as cause:
            raise RunStoreError(
                f"{path} cannot be read: {cause}", hint="delete it, and its stage is done once more"
            ) from cause


class Turns:
    """The turns in a flywheel's folder, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "turns"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the flywheel's folder. Raises: RunStoreError: one is in it."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        lock = RunLock(self._folder.parent / "lock")
        lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def all(self) -> list[Turn]:
        if not self._folder.is_dir():
            return []
        found = (path for path in sorted(self._folder.iterdir()) if _NAME.fullmatch(path.name))
        return [turn for turn in map(Turn, found) if turn.has(_INPUTS)]

    def last_done(self) -> Turn | None:
        return next((turn for turn in reversed(self.all()) if turn.done), None)

    def open(self) -> Turn | None:
        """The newest turn, where it is not over."""
        newest = self.all()[-1:]
        return newest[0] if newest and not newest[0].over else None

    def begin(self, inputs: Mapping[str, Any]) -> Turn:
        """A turn with these inputs; its name has their digest."""
        number = max((turn.number for turn in self.all()), default=0) + 1
        turn = Turn(self._folder / f"{number:04d}-{digest_of(inputs)[:8]}")
        turn.once(_INPUTS, lambda: dict(inputs))
        return turn
