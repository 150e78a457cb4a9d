"""Episodes that a resumed run keeps: those of the step after its resume point that had finished when it was killed.

They are kept where sampling them again could only repeat what was done: their weights are those of the resume point,
their origin (`origin.py`) is the same, and their record is whole. All others are moved away with the steps that run
again. A step's episodes are kept once: if training on them is what ended the run, the next resume samples new ones.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from astune.config import AstuneConfig
from astune.runs import EpisodeReader, EpisodeRow, RunDirectory, write_atomic
from astune.schema import Episode, RunStoreError, Task, stable_seed

Attempts = list[Episode]
"""The attempts at one of a task's episodes, of which the last has finished."""


@dataclass(frozen=True, slots=True)
class _Note:
    """The origin of the newest step's episodes, and the step of which a resume has kept some."""

    origin: str = ""
    kept: int = 0

    @classmethod
    def read(cls, path: Path) -> _Note:
        with suppress(OSError, ValueError, TypeError):
            return cls(**orjson.loads(path.read_bytes()))
        return cls()


def rewind(
    run: RunDirectory,
    config: AstuneConfig,
    *,
    step: int,
    version: int,
    tasks: Sequence[Task],
    whole_groups: bool,
    origin: str,
    tell: Callable[[str], object],
) -> list[Attempts]:
    """Move away what was recorded after a resume point, except episodes that are kept, and return these.

    Args:
        step: of the resume point; -1 for the beginning.
        version: of its weights.
        tasks: the first ones that the next step takes.
        whole_groups: keep a task's episodes only where all of them had finished, as a judge of groups needs.
        origin: of the episodes to come; empty where it is unknown, and then nothing is kept.
        tell: receives a line about what was moved and what is kept.
    """
    following, note, kept = max(step, 0) + 1, _Note.read(run.origin_path), list[Attempts]()
    if origin and origin == note.origin and note.kept != following:
        with run.episodes() as reader:
            kept = _finished(reader, config, following, version, tasks, whole_groups=whole_groups)
    moved = run.rewind(step, {each.episode_id: each.n_trained for attempts in kept for each in attempts})
    write_atomic(run.origin_path, orjson.dumps(asdict(_Note(origin, following if kept else 0))))
    if moved is not None:
        tell(str(moved))
    if kept:
        tell(f"keeping {len(kept)} finished episode{'' if len(kept) == 1 else 's'} of step {following}")
    return kept


def _finished(
    reader: EpisodeReader, config: AstuneConfig, step: int, version: int, tasks: Sequence[Task], *, whole_groups: bool
) -> list[Attempts]:
    rows: dict[tuple[str, int], list[EpisodeRow]] = defaultdict(list)
    for row in reader.list(step=step, split="train"):
        rows[row.task_id, row.repeat].append(row)
    num_repeat, seen, kept = config.rollout.num_repeat, Counter[str](), list[Attempts]()
    for task in tasks:
        repeats = range(seen[task.task_id], seen[task.task_id] + num_repeat)
        seen[task.task_id] += num_repeat
        group = [_attempts(reader, rows[task.task_id, repeat]) for repeat in repeats]
        group = [each for each in group if each and all(_fits(one, task, config, version) for one in each)]
        if len(group) == num_repeat or not whole_groups:
            kept += group
    return kept


def _attempts(reader: EpisodeReader, rows: Sequence[EpisodeRow]) -> Attempts:
    """Return all attempts at an episode; none where one is missing or damaged, or none has finished."""
    rows = sorted(rows, key=lambda row: row.attempt)
    numbers, failed = [row.attempt for row in rows], [row.status == "error" for row in rows]
    if numbers != [*range(1, len(rows) + 1)] or failed != [True] * (len(rows) - 1) + [False]:
        return []
    try:
        return [reader.read(row.episode_id) for row in rows]
    except RunStoreError:
        return []


def _fits(episode: Episode, task: Task, config: AstuneConfig, version: int) -> bool:
    sampled = [node for node in episode.forest.nodes if node.sampled]
    return (
        (episode.reward is None) == (episode.status == "error")
        and episode.task == task
        and episode.seed == stable_seed(config.seed, episode.episode_id)
        and all(node.weights_version == version for node in sampled if node.trainable)
        and all(math.isfinite(logprob) for node in sampled for logprob in node.logprobs or ())
    )
