"""Stages of a turn. Each stores its result in the turn's folder and is not repeated."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from astune.app.api import execute
from astune.app.console import Console
from astune.app.evaluation import Evaluation, measure, with_model
from astune.app.experiment import Experiment
from astune.app.feedback import exported
from astune.app.flywheel_inputs import Inputs, feedback_of, weights_digest
from astune.app.flywheel_making import EXPANDED, LABELLED, expanded, learned_rubrics, rubrics_of, task_line
from astune.app.run import Run
from astune.config.schema import TaskReaderConfig
from astune.env_service.base import text_of
from astune.feedback import FeedbackStore, Interaction, Rating
from astune.feedback.interaction import digest_of
from astune.feedback.masking import PATTERNS, Masker
from astune.feedback.question import asked, plain
from astune.flywheel import Decision, Evidence, Turn, Turns, compare, decide, filtered
from astune.flywheel.decision import MEASURED
from astune.flywheel.evidence import asked_by
from astune.launcher.companion import CompanionFlags
from astune.runs import RunDirectory, copy_folder, runs_below, write_atomic
from astune.schema import Episode, RunStoreError, Task, TaskReaderError, WorkflowError
from astune.task_reader import open_task_reader
from astune.task_reader.data_reader import tasks_in

FROZEN, REGRESSION, FRESH = "frozen", "regression", "fresh"
_REPLAYED = "replayed.jsonl"
"""Original tasks that are replayed beside those of `EXPANDED`."""
_MASKED_BEFORE = Masker(dict.fromkeys(PATTERNS, ""))
"""Content of a store was masked when it was written, as that store was configured."""
_FILES = {FROZEN: "held_out", REGRESSION: "regression"}


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
        for rule, n in Counter(row["rule"] for row in found["dropped"]).most_common():
            yield f"{n:,} taken out as {rule}"
        yield f"{found['training']:,} tasks to train on, {found['replayed']:,} of them replayed"
        if n := found.get("not_trained"):
            yield f"{n:,} tasks are not trained: their questions are held out"
        for why, n in found.get("not_replayed", {}).items():
            yield f"{n:,} original tasks are not replayed: {why}"
        yield f"{found['fresh']:,} fresh tasks, held out"


@dataclass(frozen=True)
class Tried:
    """A task with the results of both models: success of each episode, and the last answer."""

    task: Task
    of: str
    old: list[bool]
    new: list[bool]
    old_answer: str
    new_answer: str


class Stages:
    """The stages of `turn`; `folder` is the flywheel's, where evaluations and promoted models are kept."""

    def __init__(
        self,
        experiment: Experiment,
        turn: Turn,
        folder: Path,
        console: Console,
        inputs: Inputs,
        store: Path | None = None,
    ) -> None:
        self._experiment = experiment
        self._turn = turn
        self._folder = folder
        self._console = console
        self._inputs = inputs
        self._store = store or inputs.store

    def filter(self) -> Filtered:
        """Reject untrusted feedback, and create tasks from the rest: `train.jsonl` and `fresh.jsonl`."""
        return Filtered(self._turn.once("filtered", self._filter))

    def expand(self) -> dict[str, Any]:
        """Create tasks from failures that users corrected, where `flywheel.expand` asks for them."""
        return self._turn.once("expanded", self._expand)

    def rubrics(self) -> dict[str, Any]:
        """Learn rubrics from rated answers, where `flywheel.rubrics` asks for them."""
        return self._turn.once("rubrics", lambda: learned_rubrics(self._experiment, self._turn))

    def train(self) -> dict[str, Any]:
        """Train the promoted model on the turn's tasks, in a separate run; `why` is the reason if there is no model."""
        return self._turn.once("trained", self._train)

    def decide(self, say: Callable[[str], None]) -> Decision:
        """Evaluate both models on every set, and decide."""
        return Decision.read(self._turn.once("decision", lambda: self._decide(say).row()))

    def kept_model(self) -> Path:
        """Return the new model's folder beside the turns, where it is copied once, since runs may be cleaned."""
        kept = self._folder / "models" / self._turn.name
        if not kept.is_dir():
            partial = kept.with_name(f".{kept.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            copy_folder(Path(self._turn.result("trained")["model"]), partial)
            partial.rename(kept)
        return kept

    def tried(self) -> list[Tried]:
        """Return every task on which both models were evaluated; empty if nothing was trained."""
        if self._turn.result("trained")["model"] is None:
            return []
        found: list[Tried] = []
        for name, tasks in self._sets().items():
            old, new = (self._evaluated(role, name, tasks, lambda _: None) for role in ("old", "new"))
            for task in tasks:
                if task.task_id in old and task.task_id in new:
                    one, other = old[task.task_id], new[task.task_id]
                    found.append(Tried(task, name, one["success"], other["success"], one["said"], other["said"]))
        return found

    def _filter(self) -> dict[str, Any]:
        config = self._experiment.config
        interactions, ratings, deleted = feedback_of(self._store, self._turn.inputs)
        compared_on = self._compared_on()
        evidence = filtered(
            Evidence(interactions, ratings, self._turn.inputs["ratings"]),
            max_ratings=config.flywheel.max_ratings,
            held_out=compared_on,
        )
        accepted, fresh = self._tasks_of(evidence.interactions.values(), evidence.ratings)
        trained = self._trained_before()
        fresh = [task for task in fresh if asked_by(task) not in trained]
        held_out = {asked_by(task) for task in fresh}
        training = [task for task in accepted if asked_by(task) not in held_out]
        new = set(self._turn.inputs["new"])
        fresh = [task for task in fresh if task.metadata["interaction"] in new] or fresh
        replay, left_out = self._replay(compared_on | {asked_by(task) for task in fresh})
        replayed = self._replayed(replay, len(training))
        for name, tasks in (("train", [*training, *replayed]), (FRESH, fresh)):
            self._turn.write(f"{name}.jsonl", "".join(task_line(task) for task in tasks))
        return {
            "conversations": len(interactions),
            "ratings": len(ratings),
            "new": len(new),
            "deleted": deleted,
            "sources": sorted(_sources(interactions, ratings).items()),
            "dropped": [each.row() for each in evidence.dropped],
            "training": len(training) + len(replayed),
            "not_trained": len(accepted) - len(training),
            "replayed": len(replayed),
            "not_replayed": left_out,
            "fresh": len(fresh),
        }

    def _expand(self) -> dict[str, Any]:
        fresh = self._turn.folder / "fresh.jsonl"
        held_out = tasks_in(fresh, self._experiment.base_dir) if fresh.stat().st_size else []
        compared_on = self._compared_on() | {asked_by(task) for task in held_out}
        made = expanded(self._experiment, self._turn, compared_on)
        filtered = self._turn.result("filtered")
        n_users = filtered["training"] - filtered["replayed"]
        replayed = self._replayed(self._replay(compared_on)[0], n_users + made["tasks"])[filtered["replayed"] :]
        self._turn.write(_REPLAYED, "".join(task_line(task) for task in replayed))
        return made | {"replayed": len(replayed)}

    def _trained_before(self) -> set[str]:
        """The `plain` questions that earlier turns trained: sessions and settings may put them on another side."""
        earlier = (turn.folder for turn in Turns(self._folder).all() if turn.folder != self._turn.folder)
        paths = (folder / name for folder in earlier for name in ("train.jsonl", EXPANDED))
        files = (path for path in paths if path.is_file() and path.stat().st_size)
        return {asked_by(task) for path in files for task in tasks_in(path, self._experiment.base_dir)}

    def _compared_on(self) -> set[str]:
        """The queries, made `plain`, of the sets that models are compared on."""
        return {asked_by(task) for name in _FILES.values() for task in self._inputs.tasks(name)}

    def _tasks_of(
        self, interactions: Iterable[Interaction], ratings: Sequence[Rating]
    ) -> tuple[list[Task], list[Task]]:
        """Split trusted feedback into training and validation tasks, by session."""
        reader = self._experiment.config.task_reader
        with TemporaryDirectory() as temporary:
            path = Path(temporary) / "kept.sqlite3"
            store = FeedbackStore(path, _MASKED_BEFORE)
            for interaction in interactions:
                store.add(interaction)
            for rating in ratings:
                store.rate(rating)
            self._turn.write(LABELLED, "")
            exported(store, self._turn.folder / LABELLED, "labelled")
            store.close()
            only_pairs = self._experiment.config.flywheel.learn_by == "dpo"
            feedback = reader.feedback_tracing.model_copy(update={"path": str(path), "only_pairs": only_pairs})
            config = TaskReaderConfig(type="feedback_tracing", feedback_tracing=feedback)
            try:
                splits = open_task_reader(config).read()
            except TaskReaderError:  # nothing accepted by a user is left
                return [], []
        return splits.training, splits.validation

    def _replay(self, compared_on: Collection[str]) -> tuple[list[Task], Counter[str]]:
        """The original tasks that may be trained, and how many may not, by reason; models are compared on the `plain`
        questions `compared_on`."""
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

    def _replayed(self, replay: Sequence[Task], n_training: int) -> list[Task]:
        """Original tasks, so many that they are `replay_share` of all; others in each turn. More begin with fewer."""
        share = self._experiment.config.flywheel.replay_share
        n = round(n_training * share / (1 - share))
        return random.Random(self._turn.number).sample(replay, len(replay))[:n]

    def _train(self) -> dict[str, Any]:
        trainer = self._experiment.config.trainer
        made = self._turn.result("expanded")
        n = self._turn.result("filtered")["training"] + made["tasks"] + made.get("replayed", 0)
        needed = trainer.tasks_per_step + trainer.dynamic_sampling.max_extra_tasks
        if n < needed:
            return {"model": None, "why": f"not trained: {n} tasks, but a step needs {needed}"}
        begun = self._begun()
        if begun is not None and RunDirectory.open(begun).info().status == "finished":
            run = Run(begun)
        else:
            experiment = self._new_run() if begun is None else Experiment.resumed(begun)
            run = execute(experiment, CompanionFlags(), self._console)
        model = run.latest_model
        if model is None:
            raise RunStoreError(f"the run {run.path} saved no model", hint="delete its folder, and repeat the command")
        return {"run": str(run.path), "model": str(model), "weights": weights_digest(str(model))}

    @property
    def _run_name(self) -> str:
        return f"{self._experiment.config.experiment_name}-{self._turn.name}"

    def _begun(self) -> Path | None:
        """Return the turn's run if it was started before; None if it was killed before its folder existed."""
        folder = self._experiment.config.record_dir.resolve() / self._run_name
        if not folder.is_dir():
            return None
        begun = [run for run in reversed(runs_below(folder)) if RunDirectory.open(run).config_path.is_file()]
        return begun[0] if begun else None

    def _new_run(self) -> Experiment:
        config, training = self._experiment.config, self._turn.folder / "train.jsonl"
        if self._turn.result("expanded")["tasks"]:
            parts = (self._turn.folder / name for name in ("train.jsonl", EXPANDED, _REPLAYED))
            text = "".join(path.read_text(encoding="utf-8") for path in parts if path.is_file())
            training = self._turn.write("train_expanded.jsonl", text)
        values: dict[str, Any] = {
            "experiment_name": self._run_name,
            "model": {"path": self._turn.inputs["model"]},
            "task_reader": {
                "type": "jsonl",
                "jsonl": {"training": {"file_path": str(training)}, "validation": None},
            },
        }
        if config.flywheel.learn_by != "reinforcement":
            values["trainer"] = {"algorithm": config.flywheel.learn_by}
        if rubrics := rubrics_of(self._turn):
            values["task_judge"] = {"params": {**config.task_judge.params, "file": str(rubrics)}}
        return Experiment(Experiment.of(config, values=values).config, self._experiment.conf)

    def _decide(self, say: Callable[[str], None]) -> Decision:
        settings = self._experiment.config.flywheel
        trained = self._turn.result("trained")
        if trained["model"] is None:
            return Decision(False, [trained["why"]])
        comparisons = {
            name: compare(
                name,
                *(_successes(self._evaluated(role, name, tasks, say)) for role in ("old", "new")),
                n_tasks=len(tasks),
                confidence=settings.confidence,
            )
            for name, tasks in self._sets().items()
        }
        decision = decide(
            comparisons[FROZEN],
            comparisons.get(REGRESSION),
            confidence=settings.confidence,
            worse_by=settings.worse_by,
        )
        fresh = [comparisons[FRESH]] if FRESH in comparisons else []
        return replace(decision, comparisons=[*decision.comparisons, *fresh])

    def _sets(self) -> dict[str, list[Task]]:
        """The tasks that models are compared on, by the set's name."""
        most = self._experiment.config.trainer.validation.max_tasks
        fresh = self._turn.folder / "fresh.jsonl"
        sets = {name: self._inputs.tasks(key) for name, key in _FILES.items() if key in self._inputs.files}
        if fresh.stat().st_size:
            sets[FRESH] = tasks_in(fresh, self._experiment.base_dir)
        return {name: tasks[:most] for name, tasks in sets.items()}

    def _evaluated(
        self, role: str, name: str, tasks: Sequence[Task], say: Callable[[str], None]
    ) -> dict[str, dict[str, Any]]:
        """Measure the model on each task: once per turn, stored by the content measured. Raises WorkflowError if too
        few tasks of a deciding set could be measured; nothing is stored."""
        inputs, trained = self._turn.inputs, self._turn.result("trained")
        model, weights = (
            (inputs["model"], inputs["weights"]) if role == "old" else (trained["model"], trained["weights"])
        )
        content = digest_of([self._turn.name, weights, inputs["settings"], [task_line(task) for task in tasks]])
        path = self._folder / "evaluations" / f"{content[:32]}.json"
        if not path.is_file():
            measured = measure(
                Experiment(with_model(self._experiment.config, model), self._experiment.conf),
                CompanionFlags(),
                self._console,
                tasks=tasks,
            )
            if name != FRESH:
                _require_measured(measured, len(tasks), f"{name}, {role} model")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(_by_task(measured), ensure_ascii=False).encode())
        found = json.loads(path.read_text(encoding="utf-8"))
        rates = [sum(each["success"]) / len(each["success"]) for each in found.values()]
        say(
            f"{name}, {role} model: success {sum(rates) / max(1, len(rates)):.3f} on {len(rates)} of {len(tasks)} tasks"
        )
        return found


def _sources(interactions: Sequence[Interaction], ratings: Sequence[Rating]) -> Counter[str]:
    """Count conversations by their source and the model that answered, and ratings by their kind."""
    found = Counter(f"conversations: {each.source or 'unknown'}, {each.model or 'unknown'}" for each in interactions)
    return found + Counter(f"ratings: {each.kind}" for each in ratings)


def _require_measured(measured: Evaluation, n_tasks: int, what: str) -> None:
    """Check the number of measured tasks. Raises: WorkflowError: fewer tasks than a decision needs."""
    if measured.n_tasks < MEASURED * n_tasks:
        why = "".join(f"; {n:,} times: {reason}" for reason, n in measured.dropped.most_common(3))
        raise WorkflowError(
            f"{what}: only {measured.n_tasks:,} of {n_tasks:,} tasks could be measured{why}",
            hint="fix the agent, its judge or its environment, then repeat the command",
        )


def _by_task(measured: Evaluation) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for episode in measured.episodes:
        of = found.setdefault(episode.task.task_id, {"success": [], "said": _last_answer(episode)})
        of["success"].append(episode.reward is not None and episode.reward.is_success)
    return found


def _successes(found: Mapping[str, Mapping[str, Any]]) -> dict[str, list[bool]]:
    return {name: each["success"] for name, each in found.items()}


def _last_answer(episode: Episode) -> str:
    answers = episode.forest.answers()
    return str(answers[-1].content) if answers else ""


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
