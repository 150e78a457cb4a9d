"""What a resume runs again: moved out of the way, into a folder that reads as a run of its own.

    <run>/superseded/1/
        run.json  config.yaml  metrics.jsonl  rollout/  checkpoints/

A run that was killed resumes from its newest resume point. Episodes, metrics and models of later steps would be
recorded twice, so the earlier ones go to the next number below `superseded`. Its best model stays a candidate for the
run's best (`CheckpointStore.best`). The folder appears when it holds everything but the models, which are moved one by
one; only then is anything dropped, so a kill in between loses nothing. A file in it says so until the run is rewound:
whoever resumes after such a kill goes on with that folder instead of copying everything into a second one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from astune.runs._files import fsync_folder, fsync_tree, store_errors
from astune.runs.checkpoints import Checkpoint, CheckpointStore
from astune.runs.episode_store import EpisodeStore
from astune.runs.metrics import MetricsLog, encoded

SUPERSEDED = "superseded"
_UNFINISHED = ".unfinished"
"""In a folder whose run still holds what was copied; its text is the step that the run resumes after."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """What was moved, and where to. `resumed_at` is the step that the run resumes after, -1 for the beginning."""

    path: Path
    resumed_at: int
    first_step: int
    last_step: int
    episodes: int
    models: list[Checkpoint]

    def __str__(self) -> str:
        """One line for the user."""
        start = f"after step {self.resumed_at}" if self.resumed_at >= 0 else "from the beginning"
        one = self.first_step == self.last_step
        steps = f"step {self.first_step}" if one else f"steps {self.first_step} to {self.last_step}"
        episodes = f"{self.episodes:,} episode{'' if self.episodes == 1 else 's'}"
        models = "".join(f", the model of step {model.step}{_success(model)}" for model in self.models)
        return f"resuming {start}: what was recorded of {steps} ({episodes}{models}) is now in {self.path}"


def supersede(
    run: Path,
    step: int,
    *,
    files: Sequence[Path],
    info: object,
    metrics: MetricsLog,
    episodes: EpisodeStore,
    checkpoints: CheckpointStore,
) -> Superseded | None:
    """Move everything of steps after `step` below `superseded`; None where there is nothing.

    A measurement on held-out tasks of `step` itself that was not completed goes, too.

    Args:
        files: what the folder needs a copy of to be read as a run.
        info: what its `run.json` holds.
    """
    measured = metrics.find(step, "validation") is not None
    lines = [line for line in metrics.read() if line.step > step]
    models = [checkpoint for checkpoint in checkpoints.list() if checkpoint.step > step]
    episodes_late = episodes.steps_after(step, measured=measured)
    steps = [*(line.step for line in lines), *(model.step for model in models), *episodes_late]
    folder = _unfinished(run / SUPERSEDED, step if steps else None)
    if not steps:
        return None
    if folder is None:
        folder = _next(run / SUPERSEDED)
        with store_errors(f"moving what a resume runs again to {folder}"):
            temporary = folder.with_name(f".new-{folder.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / "rollout").mkdir(parents=True)
            (temporary / "checkpoints").mkdir()
            episodes.copy_after(step, temporary / episodes.path.relative_to(run), measured=measured)
            (temporary / metrics.path.relative_to(run)).write_bytes(encoded(lines))
            for file in files:
                if file.is_file():
                    shutil.copyfile(file, temporary / file.relative_to(run))
            (temporary / "run.json").write_bytes(orjson.dumps(info, option=orjson.OPT_INDENT_2))
            (temporary / _UNFINISHED).write_text(str(step))
            fsync_tree(temporary)
            temporary.rename(folder)
            fsync_folder(folder.parent)
    checkpoints.rewind(step, folder / "checkpoints")
    metrics.rewind(step)
    episodes.rewind(step, measured=measured)
    (folder / _UNFINISHED).unlink()
    return Superseded(folder, step, min(steps), max(steps), len(episodes_late), models)


def _unfinished(folder: Path, step: int | None) -> Path | None:
    """The folder of a move to the same step that was broken off after everything had been copied.

    Marks of other moves are removed: with no `step`, the move was broken off when all was done but this.
    """
    found = None
    for mark in folder.glob(f"*/{_UNFINISHED}"):
        if mark.read_text() == str(step):
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
    return "" if model.score is None else f" with held-out success {model.score:.2f}"
