"""Which model is promoted now, and every promotion and rollback that led there. Nothing is ever taken out of it."""

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
    """From one model to another. `turn` names the turn that was promoted, or taken back."""

    action: Literal["promoted", "rolled back"]
    turn: str
    model: str
    previous: str
    at: float
    why: list[str]


class History:
    """The promotions in a flywheel's folder.

    Args:
        first: the model that nobody promoted, the experiment's own.

    Raises:
        RunStoreError: the file is there and cannot be read.
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
        self._link()

    def roll_back(self) -> Promotion:
        """Return to the model before the newest promotion that was not taken back yet.

        Raises:
            RunStoreError: there is none.
        """
        taken_back = {each.turn for each in self.entries if each.action == "rolled back"}
        promoted = [each for each in self.entries if each.action == "promoted" and each.turn not in taken_back]
        if not promoted:
            raise RunStoreError(
                f"nothing is promoted in {self._path.parent}", hint="the model is the experiment's own, model.path"
            )
        last = promoted[-1]
        self._add(Promotion("rolled back", last.turn, last.previous, last.model, time.time(), ["asked for"]))
        self._link()
        return self.entries[-1]

    def _add(self, entry: Promotion) -> None:
        self.entries.append(entry)
        rows = [asdict(each) for each in self.entries]
        write_atomic(self._path, json.dumps(rows, indent=1, ensure_ascii=False).encode())

    def _link(self) -> None:
        link, current = self._path.parent / PROMOTED, Path(self.current)
        new = link.with_name(f".{PROMOTED}.new")
        new.unlink(missing_ok=True)
        if current.is_dir():
            new.symlink_to(current.resolve(), target_is_directory=True)
            new.replace(link)
        else:
            link.unlink(missing_ok=True)

    def _read(self) -> list[Promotion]:
        if not self._path.is_file():
            return []
        try:
            rows: list[dict[str, Any]] = json.loads(self._path.read_text(encoding="utf-8"))
            return [Promotion(**row) for row in rows]
        except (OSError, ValueError, TypeError) as cause:
            raise RunStoreError(f"{self._path} cannot be read: {cause}", hint="restore it from a backup") from cause
