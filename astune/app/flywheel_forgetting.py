"""Delete what turns of a flywheel made of feedback that is to be forgotten: tasks, reports, measurements and runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from astune.app.flywheel_tasks import FRESH_TASKS, TRAINED_QUESTIONS, trained_questions
from astune.flywheel import Turn, Turns
from astune.schema import ConfigError, RunStoreError


def forget_turns(folder: Path, digests: Collection[str]) -> list[Turn]:
    """Delete what the turns with any of these conversations or ratings made of feedback; returns those turns.

    Decisions, promotions, promoted models and the turns' inputs, which are digests, stay. An open turn is abandoned.

    Raises:
        ConfigError: there is no such folder.
        RunStoreError: a turn is running, or a file cannot be deleted.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", hint="name the one that flywheel.folder names")
    turns = Turns(folder)
    with turns.locked():
        found = [turn for turn in turns.all() if not turn.feedback.isdisjoint(digests)]
        for turn in found:
            if not turn.over:
                turn.abandon("feedback that it learns from was deleted")
            try:
                _forget(folder, turn)
            except OSError as cause:
                raise RunStoreError(
                    f"{cause.filename} cannot be deleted: {cause.strerror}",
                    hint="check the permissions, and repeat the command",
                ) from cause
    return found


def _forget(folder: Path, turn: Turn) -> None:
    """The turn's own files last, which name the others: a killed command is repeated. Digests of what was trained stay,
    so that no later turn asks it as a fresh question."""
    fresh = turn.folder / FRESH_TASKS
    tasks = (
        {json.loads(line)["task_id"] for line in fresh.read_text().split("\n") if line} if fresh.is_file() else set()
    )
    for path in (folder / "evaluations").glob("*.json"):
        if not tasks.isdisjoint(json.loads(path.read_text(encoding="utf-8"))):
            path.unlink()
    for run in _runs(turn):
        if run.is_dir():
            shutil.rmtree(run)
    turn.write(TRAINED_QUESTIONS, json.dumps(sorted(trained_questions(turn))))
    turn.erase()


def _runs(turn: Turn) -> list[Path]:
    """The folders of the turn's runs, also where it was killed while it trained. A turn of an earlier version names
    only the run that it ended with."""
    begun = [turn.result("runs")["folder"]] if turn.has("runs") else []
    trained = turn.result("trained").get("run") if turn.has("trained") else None
    return [Path(each) for each in (*begun, trained) if each]
