"""Better prompts in place of better weights: GEPA's reflective search over a workflow's own prompts.

It is a backbone as others are: the same tasks, workflow, judge, records and viewer. A step is one evaluation of GEPA's.
A search that was killed resumes by its journal (`search_journal.py`).

Source: Agrawal et al. 2025, arXiv 2507.19457; the library `gepa`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from astune.backbone.base import Backbone, RunObserver
from astune.backbone.engines import OpenModel, open_model
from astune.backbone.parts import UserParts
from astune.backbone.recorder import Recorder
from astune.backbone.search_journal import SearchJournal
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.helper_model import HelperModel, Usage
from astune.rollout import RolloutPool
from astune.runs import EpisodeReader, RunDirectory
from astune.runs.report import BEST_PROMPTS
from astune.schema import ConfigError, Episode, EpisodeGroup, Split, Task, WorkflowError, install_extra
from astune.task_judge.judged import problem_of
from astune.trainer.batch import drop_untrained
from astune.trainer.ledger import RolloutResult, StepLedger
from astune.trainer.measures import PhaseClock
from astune.workflow.loading import load_workflow

REFERENCE = "astune.backbone.prompt_search->PromptSearch"
NOT_TRAINED = "prompts are searched"
MINIBATCH = 3
"""Tasks that a new prompt is tried on first."""
_SHOWN = 4_000
_REFLECTS = "You improve the prompts of AI agents."

_OUTAGES = ("EngineError", "EnvError", "JudgeError", "HelperModelError", "SandboxError")
"""Failures of an episode that no prompt causes."""
Prompts = dict[str, str]
T = TypeVar("T")
_Played = tuple[RolloutResult, dict[str, str]]
"""Episodes, and why some tasks, by their ids, could not be played."""


@dataclass(frozen=True, slots=True)
class _Unplayed:
    """A task that could not be played with some prompts."""

    task: Task
    why: str


_Tried = Episode | _Unplayed


class PromptSearch(Backbone):
    """Searches for prompts; no weights change."""

    def check(self, config: AstuneConfig) -> None:
        prompts_of(config)
        HelperModel(config.helper_model)
        _gepa()

    async def train(
        self,
        config: AstuneConfig,
        parts: UserParts,
        run: RunDirectory,
        observer: RunObserver,
        *,
        base_dir: Path | None = None,
    ) -> None:
        needed = config.prompt_search.validation_tasks + 1
        if len(parts.training_tasks) < needed:
            raise ConfigError(
                f"{len(parts.training_tasks)} training tasks are too few to compare prompts on",
                hint=f"bring {needed}, or lower prompt_search.validation_tasks",
            )
        journal = SearchJournal(run.path)
        superseded = run.rewind(journal.last_step)
        if superseded is not None:
            observer.on_note(str(superseded))
        observer.on_phase("loading the model")
        loop = asyncio.get_running_loop()
        async with open_model(config, own=parts.engine) as model:
            run.save_vocabulary(model.renderer.vocabulary())
            with run.open_episodes() as episodes, run.open_metrics() as metrics:
                held_out = parts.validation_tasks[: config.trainer.validation.max_tasks]
                ledger = StepLedger(
                    config,
                    episodes=episodes,
                    metrics=metrics,
                    checkpoints=run.checkpoints,
                    n_validation_tasks=len(held_out),
                    on_record=observer.on_record,
                )
                player = _Player(config, parts, model, Recorder(episodes, observer), ledger, observer, base_dir, loop)
                start = prompts_of(config)
                if ledger.last_measured < 0:
                    await player.measure(start, held_out)
                with run.episodes() as recorded:
                    search = _Search(player, journal, recorded, HelperModel(config.helper_model))
                    best = await asyncio.to_thread(search.best, start, parts.training_tasks)
                if ledger.last_measured < ledger.step:
                    await player.measure(best, held_out)
        found = {"astune": {"rollout": {"params": best}}}
        (run.path / BEST_PROMPTS).write_text(
            yaml.safe_dump(found, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


def prompts_of(config: AstuneConfig) -> Prompts:
    """The prompts that are searched, by their names among `rollout.params`.

    Raises:
        ConfigError: there are none, or one is no text.
    """
    params, named = config.rollout.params, config.prompt_search.prompts
    if not named:
        named = [name for name, value in params.items() if isinstance(value, str) and " " in value.strip()]
    wrong = [name for name in named if not isinstance(params.get(name), str)]
    if wrong or not named:
        what = f"rollout.params.{wrong[0]} is no text" if wrong else "rollout.params holds no prompt"
        hint = "let the workflow take its prompt as an argument, and set it in rollout.params: {system_prompt: ...}"
        raise ConfigError(what, hint=hint)
    return {name: params[name] for name in named}


@dataclass
class _Player:
    """Plays tasks with any prompts, on one engine, and records them."""

    config: AstuneConfig
    parts: UserParts
    model: OpenModel
    recorder: Recorder
    ledger: StepLedger
    observer: RunObserver
    base_dir: Path | None
    loop: asyncio.AbstractEventLoop

    async def play(
        self, prompts: Prompts, tasks: Sequence[Task], split: Split, num_repeat: int | None = None
    ) -> _Played:
        params = self.config.rollout.params | prompts
        # Nothing is trained, so that there are no earlier versions for a league.
        config = changed(self.model.config, rollout={"params": params}, trainer={"league": {"share": 0.0}})
        workflow = load_workflow(config, self.base_dir)
        pool = RolloutPool(self.model.engine, self.model.renderer, workflow, self.parts.judge, config, self.recorder)
        clock, engine = PhaseClock(self.observer.on_phase), self.model.engine
        before = engine.stats()
        with clock.phase("validation" if split == "validation" else "rollout"):
            groups = await pool.run_groups(tasks, step=self.ledger.step, split=split, num_repeat=num_repeat)
        counted = engine.stats() - before
        unplayed = {group.task.task_id: _why(group) for group in groups if group.dropped is not None}
        if split == "train":
            drop_untrained(groups, NOT_TRAINED)
        balance = pool.balance(groups, counted)
        return RolloutResult(groups, counted, sum(clock.seconds.values()), balance), unplayed

    async def measure(self, prompts: Prompts, held_out: Sequence[Task]) -> None:
        """Success on the held-out tasks, as a measurement of the present step."""
        if held_out:
            played, _ = await self.play(prompts, held_out, "validation")
            self.ledger.record_validation(self.ledger.step, played, seconds={"validation": played.seconds})

    async def try_out(self, prompts: Prompts, tasks: Sequence[Task], more: Mapping[str, float]) -> list[_Tried]:
        """Run an episode per task, as a step of the run.

        Args:
            more: metrics of the search.
        """
        self.ledger.begin_untrained(self.ledger.step + 1)
        played, unplayed = await self.play(prompts, tasks, "train", num_repeat=1)
        self.ledger.record_untrained(played, seconds={"rollout": played.seconds}, more=more)
        finished = [episode for group in played.groups for episode in group.episodes]
        return [*finished, *(_Unplayed(task, unplayed[task.task_id]) for task in tasks if task.task_id in unplayed)]

    def skip_to(self, step: int, recorded: EpisodeReader) -> list[Episode]:
        """The episodes of a step that an earlier process of the run played."""
        self.ledger.begin_untrained(step)
        return [each for each in recorded.episodes(step=step, split="train") if each.status != "error"]


@dataclass
class _Search:
    """Interface for GEPA: scores of prompts on tasks, what a reflection reads of the episodes, and what it writes.

    GEPA is synchronous and runs in a thread; episodes and questions run on the run's loop.
    """

    player: _Player
    journal: SearchJournal
    recorded: EpisodeReader
    model: HelperModel
    reported: Usage = field(default_factory=Usage)
    failed: Exception | None = None
    """The error of a reflection. GEPA drops it, so the next call from there raises it again."""
    propose_new_texts: None = None
    start: Prompts | None = None
    lowest: float = 0.0
    """The lowest reward so far, or 0: the score of a task that could not be played."""

    def best(self, start: Prompts, tasks: Sequence[Task]) -> Prompts:
        """The best prompts that GEPA finds.

        Raises:
            AstuneError: an episode could not be played with the prompts of the start, or the helper model did not
                answer.
        """
        self.start = start
        gepa, _ = _gepa()
        config = self.player.config
        n = config.prompt_search.validation_tasks
        found = gepa.optimize(
            seed_candidate=start,
            trainset=list(tasks[n:]),
            valset=list(tasks[:n]),
            adapter=self,
            reflection_lm=self.reflect,
            reflection_minibatch_size=MINIBATCH,
            max_metric_calls=config.prompt_search.max_episodes,
            logger=_Quiet(),
            seed=config.seed,
        )
        self._raise_failed()
        return dict(found.best_candidate)

    def reflect(self, prompt: Any) -> str:
        """Answer of the helper model."""
        self._raise_failed()
        try:
            return self._reflected(prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False))
        except Exception as error:
            self.failed = error
            raise

    def evaluate(self, batch: list[Task], candidate: Prompts, capture_traces: bool = False) -> Any:
        """Play a candidate. GEPA fills up an epoch's last batch, so a task may be in it twice; it is played once.

        A task that cannot be played with proposed prompts has the lowest score, since the prompts may be the cause.

        Raises:
            WorkflowError: one cannot be played with the prompts of the start, or for a cause that no prompt has.
        """
        self._raise_failed()
        tasks = {task.task_id: task for task in batch}
        recorded = self.journal.tried(candidate, list(tasks))
        if recorded is None:
            tried = self._awaited(self.player.try_out(candidate, list(tasks.values()), self._spent()))
        else:
            step, why = recorded
            tried = [*self.player.skip_to(step, self.recorded), *(_Unplayed(tasks[name], why[name]) for name in why)]
        unplayed = {each.task.task_id: each.why for each in tried if isinstance(each, _Unplayed)}
        cause = next((why for why in unplayed.values() if candidate == self.start or why.startswith(_OUTAGES)), None)
        if cause is not None:
            raise WorkflowError(f"prompts cannot be compared, since an episode failed: {cause}")
        self.lowest = min([self.lowest, *(each.raw_reward for each in tried if isinstance(each, Episode))])
        by_task = {each.task.task_id: each for each in tried}
        scores = {name: self._score(each) for name, each in by_task.items()}
        if recorded is None:
            step, rewards = self.player.ledger.step, [scores[name] for name in tasks]
            self.journal.add_try(step, candidate, list(tasks), rewards, unplayed)
        outputs = [by_task[task.task_id] for task in batch]
        _, evaluation = _gepa()
        found = [scores[task.task_id] for task in batch]
        return evaluation(outputs=outputs, scores=found, trajectories=outputs if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: Prompts, eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        shown = [_shown(tried, self.player.config.task_judge.reference_field) for tried in eval_batch.trajectories]
        return dict.fromkeys(components_to_update, shown)

    def _score(self, tried: _Tried) -> float:
        return tried.raw_reward if isinstance(tried, Episode) else self.lowest

    def _reflected(self, asked: str) -> str:
        text = self.journal.reflected(asked)
        if text is None:
            text = self._awaited(self.model.ask(_REFLECTS, asked))
            self.journal.add_reflection(asked, text)
        return text

    def _raise_failed(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _spent(self) -> dict[str, float]:
        """Usage of reflections since the previous step."""
        used, before = self.model.used, self.reported
        self.reported = replace(used)
        return {
            "search/helper_calls": float(used.calls - before.calls),
            "search/helper_tokens": float(used.tokens - before.tokens),
        }

    def _awaited(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.player.loop).result()


class _Quiet:
    """GEPA's own lines are left out: the run's display says what is played."""

    def log(self, message: str) -> None: ...


def _gepa() -> tuple[Any, Any]:
    """
    Raises:
        ConfigError: the library is not there.
    """
    try:
        gepa, adapter = importlib.import_module("gepa"), importlib.import_module("gepa.core.adapter")
    except ImportError as cause:
        raise ConfigError("the search for prompts needs gepa", hint=install_extra("prompts")) from cause
    return gepa, adapter.EvaluationBatch


def _why(group: EpisodeGroup) -> str:
    """Why a group was dropped: what its last attempt failed with."""
    return (group.failed_attempts[-1].error if group.failed_attempts else None) or str(group.dropped)


def _shown(tried: _Tried, reference_field: str) -> dict[str, Any]:
    inputs = {"task": problem_of(tried.task)[:_SHOWN]}
    if isinstance(tried, _Unplayed):
        feedback = f"It could not be played: {tried.why[:_SHOWN]}"
        return {"Inputs": inputs, "Generated Outputs": "", "Feedback": feedback}
    episode = tried
    written = "\n".join(
        f"[{node.role}] {node.content}" for node in episode.forest.nodes if node.sampled or node.role == "tool"
    )
    reference = episode.task.metadata.get(reference_field)
    known = "" if reference is None else f" A correct answer is: {reference}."
    succeeded = episode.reward is not None and episode.reward.is_success  # also where it was truncated
    ended = "a success" if succeeded else "no success"
    return {
        "Inputs": inputs,
        "Generated Outputs": written[-_SHOWN:],
        "Feedback": f"The reward is {episode.raw_reward:g}, {ended}.{known}",
    }
