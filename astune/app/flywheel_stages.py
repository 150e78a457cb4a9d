"""Stages of a turn. Each stores its result in the turn's folder and is not repeated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astune.app.api import execute
from astune.app.console import Console
from astune.app.evaluation import Evaluation, measure, with_model
from astune.app.experiment import Experiment
from astune.app.flywheel_inputs import Inputs, weights_digest
from astune.app.flywheel_making import EXPANDED, expanded, learned_rubrics, rubrics_of, task_line
from astune.app.flywheel_tasks import REPLAYED, SETS, TRAIN, Filtered, TurnTasks
from astune.app.run import Run
from astune.feedback.interaction import digest_of
from astune.flywheel import Decision, Turn, compare, decide
from astune.flywheel.decision import MEASURED
from astune.launcher.companion import CompanionFlags
from astune.runs import RunDirectory, copy_folder, runs_below, write_atomic
from astune.schema import Episode, RunStoreError, Task, WorkflowError

FROZEN, REGRESSION, FRESH = "frozen", "regression", "fresh"
_FILES = dict(zip((FROZEN, REGRESSION), SETS, strict=True))


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
        self._tasks = TurnTasks(experiment, turn, folder, inputs, store or inputs.store)

    def filter(self) -> Filtered:
        """Reject untrusted feedback, and create tasks from the rest: `train.jsonl` and `fresh.jsonl`."""
        return Filtered(self._turn.once("filtered", self._tasks.write))

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

    def _expand(self) -> dict[str, Any]:
        made = expanded(self._experiment, self._turn, self._tasks.not_to_train())
        return made | {"replayed": self._tasks.write_replayed(made["tasks"])}

    def _train(self) -> dict[str, Any]:
        trainer = self._experiment.config.trainer
        made = self._turn.result("expanded")
        n = self._turn.result("filtered")["training"] + made["tasks"] + made.get("replayed", 0)
        needed = trainer.tasks_per_step + trainer.dynamic_sampling.max_extra_tasks
        if n < needed:
            why = n == 0 and self._turn.result("filtered").get("why")
            return {"model": None, "why": f"not trained: {why or f'{n} tasks, but a step needs {needed}'}"}
        begun = self._begun()
        if begun is not None and RunDirectory.open(begun).info().status == "finished":
            run = Run(begun)
        else:
            experiment = self._new_run() if begun is None else Experiment.resumed(begun)
            self._turn.once("runs", lambda: {"folder": str(self._runs)})
            run = execute(experiment, CompanionFlags(), self._console)
        model = run.latest_model
        if model is None:
            raise RunStoreError(f"the run {run.path} saved no model", hint="delete its folder, and repeat the command")
        return {"run": str(run.path), "model": str(model), "weights": weights_digest(str(model))}

    @property
    def _run_name(self) -> str:
        return f"{self._experiment.config.experiment_name}-{self._turn.name}"

    @property
    def _runs(self) -> Path:
        return self._experiment.config.record_dir.resolve() / self._run_name

    def _begun(self) -> Path | None:
        """Return the turn's run if it was started before; None if it was killed before its folder existed."""
        if not self._runs.is_dir():
            return None
        begun = [run for run in reversed(runs_below(self._runs)) if RunDirectory.open(run).config_path.is_file()]
        return begun[0] if begun else None

    def _new_run(self) -> Experiment:
        config, training = self._experiment.config, self._turn.folder / TRAIN
        if self._turn.result("expanded")["tasks"]:
            parts = (self._turn.folder / name for name in (TRAIN, EXPANDED, REPLAYED))
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
        sets = {name: self._inputs.tasks(key) for name, key in _FILES.items() if key in self._inputs.files}
        if fresh := self._tasks.fresh():
            sets[FRESH] = fresh
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
