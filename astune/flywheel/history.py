"""History of promotions and rollbacks, append-only; its last entry is the promoted model."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from astune.runs import write_atomic
from astune.schema import RunStoreError

_NAME = "promotions.json"
PROMOTED = "promoted"
"""A link to the promoted model's folder, for `astune serve`."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """Change from one model to another. `turn` names the turn that was promoted, or rolled back."""

    action: Literal["promoted", "rolled back"]
    turn: str
    model: str
    previous: str
    at: float
    why: list[str]


class History:
    """The promotions in a flywheel's folder. Raises RunStoreError if the file is there and cannot be read.

    Args:
        first: the model before any promotion, the experiment's own.
    """

    def __init__(self, folder: Path, first: str) -> None:
        self._path = folder / _NAME
        self._first = first
        self.entries = self._read()

    @property
    def current(self) -> str:
        """The promoted model: a folder, or whatever `model.path` is where nothing was promoted."""
        return self.entries[-1].model if self.entries else self._first

    def knows(self, turn: str) -> bool:
        return any(each.turn == turn for each in self.entries)

    def promote(self, turn: str, model: Path, why: list[str]) -> None:
        """Make a turn's model the promoted one; a turn that was promoted before is left as it is."""
        if not self.knows(turn):
            self._add(Promotion("promoted", turn, str(model), self.current, time.time(), why))
        self.relink()

    def roll_back(self) -> Promotion:
        """Return to the model before the newest promotion that was not rolled back yet.

        Where a rollback was killed before the link had followed it, the link follows, and that rollback is returned.
        Raises RunStoreError if there is none.
        """
        if self.entries and self.entries[-1].action == "rolled back" and not self._linked():
            self.relink()
            return self.entries[-1]
        taken_back = {each.turn for each in self.entries if each.action == "rolled back"}
        promoted = [each for each in self.entries if each.action == "promoted" and each.turn not in taken_back]
        if not promoted:
            raise RunStoreError(
                f"nothing is promoted in {self._path.parent}", hint="the model is the experiment's own, model.path"
            )
        last = promoted[-1]
        self._add(Promotion("rolled back", last.turn, last.previous, last.model, time.time(), ["asked for"]))
        self.relink()
        return self.entries[-1]

    def _add(self, entry: Promotion) -> None:
        self.entries.append(entry)
        rows = [asdict(each) for each in self.entries]
        write_atomic(self._path, json.dumps(rows, indent=1, ensure_ascii=False).encode())

    def relink(self) -> None:
        """Point the link to the promoted model; a kill may have come between the entry and its link."""
        if self._linked():
            return
        new = self._link.with_name(f".{PROMOTED}.new")
        new.unlink(missing_ok=True)
        if Path(self.current).is_dir() and self.entries:
            new.symlink_to(Path(self.current).resolve(), target_is_directory=True)
            new.replace(self._link)
        else:
            self._link.unlink()

    @property
    def _link(self) -> Path:
        return self._path.parent / PROMOTED

    def _linked(self) -> bool:
        """Whether the link points to the promoted model, or is not there where that is no folder."""
        current = Path(self.current)
        if not current.is_dir() or not self.entries:
            return not self._link.is_symlink()
        return self._link.is_symlink() and self._link.resolve() == current.resolve()

    def _read(self) -> list[Promotion]:
        if not self._path.is_file():
            return []
        try:
            rows: list[dict[str, Any]] = json.loads(self._path.read_text(encoding="utf-8"))
            return [Promotion(**row) for row in rows]
        except (OSError, ValueError, TypeError) as cause:
            raise RunStoreError(f"{self._path} cannot be read: {cause}", hint="restore it from a backup") from cause
