"""Tasks of a turn: what it trains, what it holds out as fresh tasks, and which labels may teach rubrics.

No question is on both sides: not of the sets that models are compared on, not of fresh tasks, not of what earlier turns
trained.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from astune.app.experiment import Experiment
from astune.app.feedback import exported
from astune.app.flywheel_inputs import Inputs, feedback_of
from astune.app.flywheel_making import EXPANDED, LABELLED, rubrics_of, task_line
from astune.config.schema import TaskReaderConfig
from astune.env_service.base import text_of
from astune.feedback import FeedbackStore, Interaction, Rating
from astune.feedback.interaction import digest_of
from astune.feedback.masking import PATTERNS, Masker
from astune.feedback.question import asked, plain
from astune.flywheel import Evidence, Turn, Turns, filtered
from astune.flywheel.evidence import asked_by
from astune.schema import Task, TaskReaderError
from astune.task_reader import open_task_reader
from astune.task_reader.data_reader import tasks_in

TRAIN, FRESH_TASKS = "train.jsonl", "fresh.jsonl"
REPLAYED = "replayed.jsonl"
"""Original tasks that are replayed beside those of `EXPANDED`."""
TRAINED_QUESTIONS = "trained_questions.json"
"""Digests of the questions that a turn trained, where its tasks were deleted."""
SETS = ("held_out", "regression")
"""The settings that name the sets that decide."""
_MASKED_BEFORE = Masker(dict.fromkeys(PATTERNS, ""))
"""Content of a store was masked when it was written, as that store was configured."""


@dataclass(frozen=True)
class Filtered:
    """Feedback after filtering; `dropped` has a row for each rating and conversation that a rule rejected."""

    result: Mapping[str, Any]

    def lines(self) -> Iterator[str]:
        found = self.result
        conversations = f"{found['conversations']:,} conversations, {found['new']:,} with something new"
        yield f"{conversations}; {found['ratings']:,} ratings"
        if found["deleted"]:
            yield f"{found['deleted']:,} of them were deleted since the turn began"
        whole = Counter(row["rule"] for row in found["dropped"] if row["whole"])
        for rule, n in Counter(row["rule"] for row in found["dropped"]).most_common():
            conversations = f"{whole[rule]:,} conversations and " if whole[rule] else ""
            yield f"{conversations}{n - whole[rule]:,} ratings taken out as {rule}"
        yield f"{found.get('accepted', 0):,} tasks are made of accepted and corrected answers"
        yield f"{found['training']:,} tasks to train on, {found['replayed']:,} of them replayed"
        for what, n in self.left_out():
            yield f"{n:,} {what}"
        yield f"{found['fresh']:,} fresh tasks, held out"
        if why := found.get("why"):
            yield f"nothing to train on: {why}"

    def left_out(self) -> Iterator[tuple[str, int]]:
        """The tasks that are neither trained nor fresh, by reason."""
        found = self.result
        counts = {
            "tasks are not trained: their questions are held out": found.get("not_trained", 0),
            "tasks are not trained: they have no rejected answer": found.get("unpaired", 0),
            "tasks are held out, and have nothing new": found.get("not_new", 0),
            **{f"original tasks are not replayed: {why}": n for why, n in found.get("not_replayed", {}).items()},
        }
        yield from ((what, n) for what, n in counts.items() if n)


class TurnTasks:
    """The tasks of `turn`; `folder` is the flywheel's, where earlier turns are."""

    def __init__(self, experiment: Experiment, turn: Turn, folder: Path, inputs: Inputs, store: Path) -> None:
        self._experiment = experiment
        self._turn = turn
        self._folder = folder
        self._inputs = inputs
        self._store = store

    def write(self) -> dict[str, Any]:
        """Filter the feedback, and write the tasks made of the rest; returns the counts that `Filtered` shows."""
        config, turn = self._experiment.config.flywheel, self._turn
        interactions, ratings, deleted = feedback_of(self._store, turn.inputs)
        compared_on = self._compared_on()
        evidence = filtered(
            Evidence(interactions, ratings, turn.inputs["ratings"]),
            max_ratings=config.max_ratings,
            held_out=compared_on,
        )
        split = self._split(evidence)
        replay, left_out = self._replay(compared_on | {asked_by(task) for task in split.fresh})
        replayed = self._sampled(replay, len(split.training))
        for name, tasks in ((TRAIN, [*split.training, *replayed]), (FRESH_TASKS, split.fresh)):
            turn.write(name, "".join(task_line(task) for task in tasks))
        return {
            "conversations": len(interactions),
            "ratings": len(ratings),
            "new": len({each.interaction_id for each in interactions}.intersection(turn.inputs["new"])),
            "deleted": deleted,
            "sources": sorted(_sources(interactions, ratings).items()),
            "dropped": [each.row() for each in evidence.dropped],
            "training": len(split.training) + len(replayed),
            "replayed": len(replayed),
            "not_replayed": left_out,
            "fresh": len(split.fresh),
            **split.counts,
        }

    def write_replayed(self, n_expanded: int) -> int:
        """Write the original tasks that are replayed beside expanded ones, and return their number."""
        found = self._turn.result("filtered")
        replay, _ = self._replay(self.not_to_train())
        n_made = found["training"] - found["replayed"] + n_expanded
        replayed = self._sampled(replay, n_made)[found["replayed"] :]
        self._turn.write(REPLAYED, "".join(task_line(task) for task in replayed))
        return len(replayed)

    def not_to_train(self) -> set[str]:
        """The questions that models are compared on, those of the turn's fresh tasks included."""
        return self._compared_on() | {asked_by(task) for task in self.fresh()}

    def fresh(self) -> list[Task]:
        path = self._turn.folder / FRESH_TASKS
        return tasks_in(path, self._experiment.base_dir) if path.stat().st_size else []

    def _compared_on(self) -> set[str]:
        return {asked_by(task) for name in SETS for task in self._inputs.tasks(name)}

    def _split(self, evidence: Evidence) -> _Split:
        """Split trusted feedback into training and fresh tasks, by session, and write the labels that rubrics are
        learned from. What an earlier turn trained stays a training task: sessions and settings may hold it out."""
        settings = self._experiment.config.flywheel
        with (
            TemporaryDirectory() as temporary,
            closing(FeedbackStore(Path(temporary) / "kept", _MASKED_BEFORE)) as kept,
        ):
            for interaction in evidence.interactions.values():
                kept.add(interaction)
            for rating in evidence.ratings:
                kept.rate(rating)
            accepted, held_out, why = self._read(Path(temporary) / "kept")
            trained = self._trained_before()
            fresh = [task for task in held_out if digest_of(asked_by(task)) not in trained]
            questions = {asked_by(task) for task in fresh}
            if settings.rubrics:
                exported(kept, self._turn.folder / LABELLED, "labelled", without=questions)
        accepted += [task for task in held_out if digest_of(asked_by(task)) in trained]
        may_train = [task for task in accepted if asked_by(task) not in questions]
        pairs = settings.learn_by == "dpo"
        training = [task for task in may_train if not pairs or "rejected" in task.metadata]
        new = set(self._turn.inputs["new"])
        newest = [task for task in fresh if task.metadata["interaction"] in new] or fresh
        counts = {
            "accepted": len(accepted) + len(fresh),
            "not_trained": len(accepted) - len(may_train),
            "unpaired": len(may_train) - len(training),
            "not_new": len(fresh) - len(newest),
            "why": "" if accepted else why,
        }
        return _Split(training, newest, counts)

    def _read(self, store: Path) -> tuple[list[Task], list[Task], str]:
        """Training and held-out tasks of a store, and why there is none to train on."""
        config = self._experiment.config.task_reader.feedback_tracing
        feedback = config.model_copy(update={"path": str(store), "only_pairs": False})
        reader = open_task_reader(TaskReaderConfig(type="feedback_tracing", feedback_tracing=feedback))
        held_out = list[Task]()
        try:
            held_out = reader.validation_tasks()
            return reader.training_tasks(), held_out, ""
        except TaskReaderError as cause:
            if held_out:
                return [], held_out, f"{cause.message}; {cause.hint}"
        why = f"no answer is left that is rated {config.min_rating:g} or better, and no corrected one"
        return [], [], f"{why}; collect more feedback, or lower task_reader.feedback_tracing.min_rating"

    def _trained_before(self) -> set[str]:
        """Digests of the questions that earlier turns trained."""
        earlier = (turn for turn in Turns(self._folder).all() if turn.folder != self._turn.folder)
        return set[str]().union(*map(trained_questions, earlier))

    def _replay(self, compared_on: Collection[str]) -> tuple[list[Task], Counter[str]]:
        """The original tasks that may be trained, and how many may not, by reason; models are compared on the questions
        `compared_on`."""
        settings, kept, left_out = self._experiment.config, list[Task](), Counter[str]()
        pairs = settings.flywheel.learn_by == "dpo"
        for task in self._inputs.tasks("replay"):
            if not _questions(task).isdisjoint(compared_on):
                left_out["models are compared on them"] += 1
            elif pairs and not _is_pair(task, settings.task_judge.reference_field):
                left_out["they have no two answers to prefer one of"] += 1
            else:
                kept.append(task)
        return kept, left_out

    def _sampled(self, replay: Sequence[Task], n_training: int) -> list[Task]:
        """Original tasks, so many that they are `replay_share` of all; others in each turn. More begin with fewer."""
        share = self._experiment.config.flywheel.replay_share
        n = round(n_training * share / (1 - share))
        return random.Random(self._turn.number).sample(replay, len(replay))[:n]


@dataclass(frozen=True)
class _Split:
    """Users' tasks to train and to hold out, and what became of the others."""

    training: list[Task]
    fresh: list[Task]
    counts: Mapping[str, Any]


def trained_questions(turn: Turn) -> set[str]:
    """Digests of the questions that a turn trained, or whose labels taught its rubrics."""
    deleted, found = turn.folder / TRAINED_QUESTIONS, set[str]()
    if deleted.is_file():
        found.update(json.loads(deleted.read_text(encoding="utf-8")))
    for path in (turn.folder / name for name in (TRAIN, EXPANDED, *([LABELLED] if rubrics_of(turn) else []))):
        rows = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        for row in (json.loads(each) for each in rows if each):
            messages = row.get("init_messages") or [{"role": "user", "content": row["main_query"]}]
            found.add(digest_of(asked(messages)))
    return found


def _sources(interactions: Sequence[Interaction], ratings: Sequence[Rating]) -> Counter[str]:
    """Count conversations by their source and the model that answered, and ratings by their kind."""
    found = Counter(f"conversations: {each.source or 'unknown'}, {each.model or 'unknown'}" for each in interactions)
    return found + Counter(f"ratings: {each.kind}" for each in ratings)


def _questions(task: Task) -> set[str]:
    """Each question of a task and of its conversation, alone and as `asked` compares it with others."""
    found = {asked_by(task), plain(task.main_query)}
    for messages in (task.init_messages, task.metadata.get("messages") or []):
        for at, message in enumerate(messages, 1):
            if message.get("role") == "user":
                found |= {plain(text_of(message)), asked(messages[:at])}
    return found - {""}


def _is_pair(task: Task, reference_field: str) -> bool:
    given = task.metadata
    chosen = given.get("chosen") or given.get(reference_field)
    return bool(chosen and given.get("rejected") and chosen != given["rejected"])
