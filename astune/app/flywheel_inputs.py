"""Inputs of a turn: the feedback store, the task sets for comparison and the settings, identified by content."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.app.experiment import Experiment
from astune.app.feedback import take_in
from astune.config import AstuneConfig, dump
from astune.engine.model_files import resolve_model, sha256_of
from astune.feedback import FeedbackStore, Interaction, Masker, Rating
from astune.flywheel import Turn
from astune.schema import ConfigError, Task
from astune.task_reader import TaskReaderJsonl
from astune.task_reader.data_reader import tasks_in


@dataclass(frozen=True)
class Inputs:
    """Files that a turn reads; `files` are the sets of tasks, by the setting that names them."""

    config: AstuneConfig
    base_dir: Path | None
    store: Path
    files: dict[str, Path]

    @classmethod
    def of(cls, experiment: Experiment) -> Inputs:
        """Collect the inputs. Raises: ConfigError: no frozen set is configured, or the serving model is not the one
        model that a turn trains. TaskReaderError: a file is missing.
        """
        config = experiment.config
        if config.engine.base_url:
            raise ConfigError(
                "engine.base_url: the flywheel measures the models that it trains, not those of servers; remove this "
                "key",
                hint="leave engine.base_url empty; engine.type: vllm starts a server for each model",
            )
        if config.models:
            raise ConfigError(
                f"models.{next(iter(config.models))}: a turn of the flywheel trains one model, model.path",
                hint="leave `models` out; several policies are trained with `astune --conf`",
            )
        if not config.flywheel.held_out:
            raise ConfigError(
                "flywheel.held_out is empty: set it to a file of tasks on which a model is proven better",
                hint="write tasks with known answers into a JSONL file that no turn trains on, and name it",
            )
        _check_making(config)
        reader = TaskReaderJsonl(config.task_reader, base_dir=experiment.base_dir)
        settings = config.flywheel
        named = {"held_out": settings.held_out, "regression": settings.regression, "replay": settings.replay}
        files = {name: reader.find(path, key=f"flywheel.{name}") for name, path in named.items() if path}
        places = reader.places(config.task_reader.feedback_tracing.path)
        store = next((place for place in places if place.is_file()), places[0])
        return cls(config, experiment.base_dir, store.absolute(), files)

    def tasks(self, name: str) -> list[Task]:
        """Return the tasks of a set; empty if it is not configured."""
        return [] if name not in self.files else tasks_in(self.files[name], self.base_dir)

    def sets(self) -> dict[str, dict[str, str]]:
        """The files of the sets, by content."""
        return {name: {"path": str(path), "sha256": sha256_of(path)} for name, path in self.files.items()}

    def copied_store(self, folder: Path) -> Path:
        """A copy of the store, to see what would come of an import."""
        copy = folder / "copy.sqlite3"
        if self.store.is_file():
            with sqlite3.connect(self.store) as source, sqlite3.connect(copy) as target:
                source.backup(target)
        return copy


def import_feedback(experiment: Experiment, store: Path) -> Iterator[str]:
    """Import the files of `flywheel.imports` and summarise the result for the user. Raises TaskReaderError if a file is
    missing or of unknown format."""
    reader = TaskReaderJsonl(experiment.config.task_reader, base_dir=experiment.base_dir)
    files = [reader.find(path, key="flywheel.imports") for path in experiment.config.flywheel.imports]
    yield from take_in(files, store, Masker()).lines()


def found_inputs(inputs: Inputs, store: Path, model: str, last: Turn | None) -> dict[str, Any] | None:
    """Identify the inputs of a new turn by content; None if there is no new feedback since the `last` completed turn.

    With each rating stands the turn in which it first came. Raises ConfigError if the frozen set has changed since.
    """
    with closing(FeedbackStore(store)) as opened:
        interactions, ratings = opened.digests()
    before: dict[str, Any] = {"interactions": [], "ratings": {}, "sets": {}} if last is None else last.inputs
    known, arrived = set(before["interactions"]), before["ratings"]
    new = {identity for digest, identity in interactions.items() if digest not in known}
    new |= {identity for digest, identity in ratings.items() if digest not in arrived}
    if not new:
        return None
    sets = inputs.sets()
    _require_frozen(sets["held_out"], before["sets"].get("held_out"))
    this = 1 if last is None else last.number + 1
    return {
        "interactions": sorted(interactions),
        "ratings": {digest: arrived.get(digest, this) for digest in sorted(ratings)},
        "new": sorted(new),
        "sets": sets,
        "settings": settings_digest(inputs.config),
        "model": model,
        "weights": weights_digest(model),
    }


def feedback_of(store: Path, inputs: Mapping[str, Any]) -> tuple[list[Interaction], list[Rating], int]:
    """A turn's conversations and ratings, and how many of them were deleted since it began."""
    with closing(FeedbackStore(store)) as opened:
        interactions = list(opened.interactions(set(inputs["interactions"])))
        ratings = list(opened.ratings(set(inputs["ratings"])))
    gone = len(inputs["interactions"]) + len(inputs["ratings"]) - len(interactions) - len(ratings)
    return interactions, ratings, gone


def settings_digest(config: AstuneConfig) -> str:
    return hashlib.sha256(dump(config).encode()).hexdigest()


def weights_digest(model: str) -> str:
    """A name of a model's content: of its configuration, weights and tokenizer."""
    digest = hashlib.sha256()
    for path in sorted(resolve_model(model).iterdir()):
        if path.suffix in (".safetensors", ".bin", ".json", ".jinja", ".model"):
            digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _require_frozen(now: Mapping[str, str], before: Mapping[str, str] | None) -> None:
    if before is not None and now["path"] == before["path"] and now["sha256"] != before["sha256"]:
        raise ConfigError(
            f"flywheel.held_out: {now['path']} changed since the last turn, but the set must stay the same",
            hint="restore it; to compare on other tasks, write them into a file of another name",
        )


def _check_making(config: AstuneConfig) -> None:
    """Raises ConfigError if new tasks or rubrics are asked for, and training would not use them or nothing could make
    them."""
    settings = config.flywheel
    for key, asked in (("expand", settings.expand > 0), ("rubrics", settings.rubrics)):
        if asked and settings.learn_by != "reinforcement":
            raise ConfigError(
                f"flywheel.{key}: flywheel.learn_by: {settings.learn_by} learns from answers that users accepted, "
                "and has no use for it",
                hint="set flywheel.learn_by: reinforcement",
            )
    if settings.rubrics and config.task_judge.judge_protocol != "rubrics":
        raise ConfigError(
            "flywheel.rubrics: the rubrics learned in a turn replace those of the judge while training, "
            f"and task_judge.judge_protocol is {config.task_judge.judge_protocol!r}",
            hint="set task_judge: {judge_protocol: rubrics, params: {file: FILE}}; models are compared with FILE",
        )
