"""The journal of a search for prompts: what was tried and what the helper model wrote, in `search.jsonl` of the run.

A search is a function of its tasks, its seed and these lines. A killed search is run again from its beginning; what the
journal holds is read instead of played or asked, so the result is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from astune.schema import RunStoreError

_FILE = "search.jsonl"
_TRY, _REFLECTION = "try", "reflection"


class SearchJournal:
    """Reads what an earlier process wrote, line by line, then writes on behind it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._lines = _whole_lines(self._path)
        self._read = 0

    @property
    def last_step(self) -> int:
        """The step of the last trial in it; 0 for none."""
        return max((line["step"] for line in self._lines if line["kind"] == _TRY), default=0)

    def tried(self, prompts: Mapping[str, str], tasks: Sequence[str]) -> tuple[int, dict[str, str]] | None:
        """The step in which these prompts were tried on these tasks, and why some could not be played, where that is
        the journal's next line."""
        line = self._next(_TRY, {"prompts": dict(prompts), "tasks": list(tasks)})
        return None if line is None else (line["step"], line.get("unplayed", {}))

    def add_try(
        self,
        step: int,
        prompts: Mapping[str, str],
        tasks: Sequence[str],
        rewards: Sequence[float],
        unplayed: Mapping[str, str],
    ) -> None:
        """Write down a trial whose episodes are on disk; `unplayed` says why some tasks have none."""
        line = {"kind": _TRY, "step": step, "prompts": prompts, "tasks": tasks, "rewards": rewards}
        self._add(line | ({"unplayed": unplayed} if unplayed else {}))

    def reflected(self, asked: str) -> str | None:
        """Return the recorded answer to this question, if it is the journal's next line."""
        line = self._next(_REFLECTION, {"asked": _digest(asked)})
        return None if line is None else line["text"]

    def add_reflection(self, asked: str, text: str) -> None:
        self._add({"kind": _REFLECTION, "asked": _digest(asked), "text": text})

    def _next(self, kind: str, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        if self._read == len(self._lines):
            return None
        line = self._lines[self._read]
        if line["kind"] != kind or any(line[name] != value for name, value in expected.items()):
            raise RunStoreError(
                f"{self._path}, line {self._read + 1}: the search differs from the recorded one",
                hint="resume it with the tasks, the seed and the settings that it had, or start a new one",
            )
        self._read += 1
        return line

    def _add(self, line: Mapping[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, which is cut behind the last one that a killed process wrote whole."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        with path.open("r+b") as file:
            file.truncate(whole)
    try:
        lines = [orjson.loads(line) for line in text[:whole].splitlines()]
        _ = [(line["kind"], line["step"] if line["kind"] == _TRY else line["text"]) for line in lines]
    except (ValueError, KeyError, TypeError) as cause:
        raise RunStoreError(f"{path} cannot be read: {cause!r}", hint="start a new search") from cause
    return lines


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
