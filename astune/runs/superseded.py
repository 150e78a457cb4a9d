"""Superseded steps: moved by a resume into a folder that can be read as a run.

    <run>/superseded/1/
        run.json  config.yaml  metrics.jsonl  rollout/  checkpoints/

A run that was killed resumes from its newest resume point. Episodes, metrics and models of later steps would be
recorded twice, so the earlier ones go to the next number below `superseded`. Its best model remains a candidate for the
run's best (`CheckpointStore.best`). The folder appears when it holds everything except the models, which are moved one
by one; only then is anything dropped, so a kill loses nothing. A marker file stays until the run is rewound: a resume
after such a kill continues with that folder instead of copying everything again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from astune.runs._files import fsync_folder, fsync_tree, store_errors
from astune.runs.checkpoints import Checkpoint, CheckpointStore
from astune.runs.episode_store import NOTHING, EpisodeStore
from astune.runs.interval import rate_text
from astune.runs.metrics import MetricsLog, encoded

SUPERSEDED = "superseded"
_UNFINISHED = ".unfinished"
"""Marker in a folder whose run still holds the copied data; its text is the step that the run resumes after, and the
episodes that stay."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Summary of what was moved, and where to. `resumed_at` is the step that the run resumes after, -1 for the
    beginning."""

    path: Path
    resumed_at: int
    first_step: int
    last_step: int
    episodes: int
    models: list[Checkpoint]

    def __str__(self) -> str:
        """Describe the move in one line for the user."""
        start = f"after step {self.resumed_at}" if self.resumed_at >= 0 else "from the beginning"
        one = self.first_step == self.last_step
        steps = f"step {self.first_step}" if one else f"steps {self.first_step} to {self.last_step}"
        episodes = f"{self.episodes:,} episode{'' if self.episodes == 1 else 's'}"
        models = "".join(f", the model of step {model.step}{_success(model)}" for model in self.models)
        return f"resuming {start}: records of {steps} ({episodes}{models}) were moved to {self.path}"


def supersede(
    run: Path,
    step: int,
    *,
    files: Sequence[Path],
    info: object,
    metrics: MetricsLog,
    episodes: EpisodeStore,
    checkpoints: CheckpointStore,
    keep: Mapping[str, int] = NOTHING,
) -> Superseded | None:
    """Move everything of steps after `step` below `superseded`; None if there is nothing.

    An incomplete validation measurement of `step` itself is moved, too.

    Args:
        keep: episodes that stay, see `EpisodeStore.rewind`.
        files: files to copy so that the folder can be read as a run.
        info: content of its `run.json`.
    """
    measured = metrics.find(step, "validation") is not None
    lines = [line for line in metrics.read() if line.step > step]
    models = [checkpoint for checkpoint in checkpoints.list() if checkpoint.step > step]
    episodes_late = episodes.steps_after(step, measured=measured, keep=keep)
    steps = [*(line.step for line in lines), *(model.step for model in models), *episodes_late]
    move = " ".join([str(step), *sorted(keep)])
    folder = _unfinished(run / SUPERSEDED, move if steps else None)
    if not steps:
        episodes.rewind(step, measured=measured, keep=keep)
        return None
    if folder is None:
        folder = _next(run / SUPERSEDED)
        with store_errors(f"moving superseded steps to {folder}"):
            temporary = folder.with_name(f".new-{folder.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "rollout").mkdir(parents=True)
            (temporary / "checkpoints").mkdir()
            episodes.copy_after(step, temporary / episodes.path.relative_to(run), measured=measured, keep=keep)
            (temporary / metrics.path.relative_to(run)).write_bytes(encoded(lines))
            for file in files:
                if file.is_file():
                    shutil.copyfile(file, temporary / file.relative_to(run))
            (temporary / "run.json").write_bytes(orjson.dumps(info, option=orjson.OPT_INDENT_2))
            (temporary / _UNFINISHED).write_text(move)
            fsync_tree(temporary)
            temporary.rename(folder)
            fsync_folder(folder.parent)
    checkpoints.rewind(step, folder / "checkpoints")
    metrics.rewind(step)
    episodes.rewind(step, measured=measured, keep=keep)
    (folder / _UNFINISHED).unlink()
    return Superseded(folder, step, min(steps), max(steps), len(episodes_late), models)


def _unfinished(folder: Path, move: str | None) -> Path | None:
    """Return the folder of an interrupted move of the same, of which everything had been copied.

    Markers of other moves are removed: with no `move`, only the removal of the marker was interrupted.
    """
    found = None
    for mark in folder.glob(f"[0-9]*/{_UNFINISHED}"):  # not of a copy that is still being made
        if mark.read_text() == move:
            found = mark.parent
        else:
            mark.unlink()
    return found


def _next(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    number = 1
    while (folder / str(number)).exists():
        number += 1
    return folder / str(number)


def _success(model: Checkpoint) -> str:
    return "" if model.score is None else f" with validation success {rate_text(model.score)}"
