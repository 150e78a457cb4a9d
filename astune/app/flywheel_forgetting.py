"""Delete what turns of a flywheel made of feedback that is to be forgotten: tasks, reports, measurements and runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from astune.flywheel import Turn, Turns


def forget_turns(folder: Path, digests: Collection[str]) -> list[Turn]:
    """Delete what the turns with any of these conversations or ratings made of feedback; returns those turns.

    Decisions, promotions, promoted models and the turns' inputs, which are digests, stay. An open turn is abandoned.

    Raises:
        RunStoreError: a turn is running.
    """
    turns = Turns(folder)
    with turns.locked():
        found = [turn for turn in turns.all() if not turn.feedback.isdisjoint(digests)]
        for turn in found:
            if not turn.over:
                turn.abandon("feedback that it learns from was deleted")
            _forget(folder, turn)
    return found


def _forget(folder: Path, turn: Turn) -> None:
    """The turn's own files last, which name the others: a killed command is repeated."""
    fresh = turn.folder / "fresh.jsonl"
    tasks = (
        {json.loads(line)["task_id"] for line in fresh.read_text().split("\n") if line} if fresh.is_file() else set()
    )
    for path in (folder / "evaluations").glob("*.json"):
        if not tasks.isdisjoint(json.loads(path.read_text(encoding="utf-8"))):
            path.unlink()
    if turn.has("trained") and (run := turn.result("trained").get("run")):
        shutil.rmtree(run, ignore_errors=True)
    turn.erase()
