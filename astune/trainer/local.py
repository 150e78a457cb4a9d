"""The training loop of one machine: roll out, judge, learn, publish the weights, record.

`_train_step` is the whole of GRPO, top to bottom. The loop knows neither which agent produced the tokens
nor how gradients are computed; it owns the order of things and the clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats, InferenceEngine
from astune.runs import Checkpoint, CheckpointStore, EpisodeStore, MetricsLog, balance_metrics
from astune.schema import Advantage, EpisodeGroup, Split, Task, TokenBalance, TrainerError, TrainingBatch, to_the_end
from astune.trainer.advantages import advantages_of, teaches_nothing
from astune.trainer.empty_steps import EmptySteps
from astune.trainer.measures import SUCCESS, PhaseClock, engine_metrics, episode_metrics, success_of_all
from astune.trainer.own_logprobs import OwnLogprobs, of_sampled
from astune.trainer.policy import PolicyTrainer

NO_VARIANCE = "group has no variance"
_LOOP_FILE = "loop.json"


class Rollouts(Protocol):
    """Runs the workflow; `RolloutPool` is the one."""

    async def run_groups(
        self, tasks: list[Task], *, step: int, split: Split, num_repeat: int, temperature: float
    ) -> list[EpisodeGroup]: ...

    def balance(self, groups: list[EpisodeGroup], before: EngineStats, after: EngineStats) -> TokenBalance:
        """The books of what the engine sampled between two readings of its counters."""
        ...


class TaskSource(Protocol):
    """Hands out training tasks in an order that can be continued; `TaskOrder` is the one."""

    def take(self, n: int) -> list[Task]: ...

    def state_dict(self) -> dict[str, Any]: ...


class TrainingObserver(Protocol):
    """Is told what the loop does; the live display is one."""

    def on_phase(self, phase: str) -> None: ...

    def on_record(self, step: int, split: Split, metrics: dict[str, float]) -> None: ...


@dataclass
class LoopState:
    """What a checkpoint must hold beside weights and optimiser, so that a resumed run is the same run."""

    step: int = 0
    trained_s: float = 0.0
    """Seconds of all training steps so far, measurements and checkpoints not counted."""
    success: float | None = None
    """Held-out success of the current weights, where it was measured."""
    order: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> LoopState:
        """Raises TrainerError where the checkpoint has none that this version reads."""
        file = checkpoint.state / _LOOP_FILE
        try:
            return cls(**orjson.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError) as cause:
            raise TrainerError(
                f"{file} cannot be read: {cause}",
                hint="resume from a checkpoint that was written whole by this version",
            ) from cause


class LocalTrainer:
    """Trains `policy` on what `rollouts` brings, until `total_steps` or a held-out success that was asked for.

    `state` is where a resumed run goes on; `policy`, `engine`, `order` and the run's records are at that step already.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        policy: PolicyTrainer,
        engine: InferenceEngine,
        rollouts: Rollouts,
        order: TaskSource,
        validation_tasks: list[Task],
        episodes: EpisodeStore,
        metrics: MetricsLog,
        checkpoints: CheckpointStore,
        observer: TrainingObserver,
        state: LoopState | None = None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._engine = engine
        self._rollouts = rollouts
        self._order = order
        self._validation_tasks = validation_tasks[: config.trainer.validation.max_tasks]
        self._episodes = episodes
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._observer = observer
        self._clock = PhaseClock(observer.on_phase)
        self._state = state or LoopState()
        self._saved = replace(self._state)
        self._recorded_version = policy.version
        self._empty_steps = EmptySteps()

    async def fit(self) -> None:
        """Train to the end; cancelling it, or an error, leaves a checkpoint of the last whole step."""
        trainer = self._config.trainer
        try:
            reached = await self._reached()
            while self._state.step < trainer.total_steps and not reached:
                await self._train_step(self._state.step + 1)
                reached = await self._reached()
                if self._state.step % trainer.save_freq == 0:
                    self._save()
        finally:
            # Weights of a step that failed half way belong to no step; the last checkpoint is the one to go on from.
            whole = self._policy.version == self._recorded_version
            if whole and self._state != self._saved and self._state.step > 0:
                self._save()

    async def _train_step(self, step: int) -> None:
        """One step of GRPO (Shao et al. 2024, arXiv 2402.03300), from tasks to new weights."""
        self._clock.restart()
        before = self._engine.stats()
        with self._clock.phase("rollout"):
            groups = await self._collect(step)
        balance = self._rollouts.balance(groups, before, self._engine.stats())
        used = [group for group in groups if group.dropped is None]
        batch = TrainingBatch(
            step,
            used,
            self._advantages(used),
            n_without_variance=sum(group.dropped == NO_VARIANCE for group in groups),
        )
        measures = episode_metrics(groups) | engine_metrics(before, self._engine.stats(), self._clock["rollout"])
        _, cancelled = await to_the_end(self._learn_and_record(batch, groups, balance, measures))
        if cancelled:
            raise asyncio.CancelledError

    async def _learn_and_record(
        self, batch: TrainingBatch, groups: list[EpisodeGroup], balance: TokenBalance, measures: dict[str, float]
    ) -> None:
        """Weights, engine, books and state move on together, or, where this is not reached, not at all."""
        logprobs: OwnLogprobs = {}
        if batch.groups:
            with self._clock.phase("train"):
                report = await asyncio.to_thread(self._policy.step, batch)
            with self._clock.phase("sync"):
                await self._engine.load_weights(self._policy.weights)
            measures |= {f"train/{name}": value for name, value in report.metrics.items()}
            balance.trained = report.trained_tokens
            logprobs = report.logprobs
        require_zero(balance)
        self._annotate(batch, groups, logprobs)
        self._recorded_version = self._policy.version
        self._state.step = batch.step
        self._state.success = None
        self._state.trained_s += self._clock.total_s
        self._state.order = self._order.state_dict()
        self._record("train", measures | balance_metrics(balance))

    async def _collect(self, step: int) -> list[EpisodeGroup]:
        """Groups of `tasks_per_step` tasks; those whose rewards are all equal are replaced within the budget."""
        trainer = self._config.trainer
        groups = await self._roll_out(step, self._order.take(trainer.tasks_per_step))
        budget = trainer.dynamic_sampling.max_extra_tasks
        while budget > 0 and (missing := trainer.tasks_per_step - sum(group.dropped is None for group in groups)) > 0:
            extra = min(missing, budget)
            budget -= extra
            groups += await self._roll_out(step, self._order.take(extra))
        self._empty_steps.look_at(groups, at_start=self._state.step == 0)
        return groups

    async def _roll_out(self, step: int, tasks: list[Task]) -> list[EpisodeGroup]:
        rollout = self._config.rollout
        groups = await self._rollouts.run_groups(
            tasks, step=step, split="train", num_repeat=rollout.num_repeat, temperature=rollout.temperature
        )
        for group in groups:
            if group.dropped is None and teaches_nothing(self._advantages([group])[0]):
                group.dropped = NO_VARIANCE
        return groups

    def _advantages(self, groups: list[EpisodeGroup]) -> list[list[Advantage]]:
        return advantages_of(groups, normalise=self._config.trainer.loss.normalise_advantages)

    async def _reached(self) -> bool:
        """Measure the held-out tasks where it is due and not done; True where their success is what was asked for."""
        trainer, step = self._config.trainer, self._state.step
        due = step % trainer.test_freq == 0 or step == trainer.total_steps
        if due and self._state.success is None and self._validation_tasks:
            recorded = self._recorded_success(step)
            self._state.success = recorded if recorded is not None else await self._validate()
            self._keep_if_best(self._state.success)
        stop, success = trainer.validation.stop_at_success, self._state.success
        return stop is not None and success is not None and success >= stop

    async def _validate(self) -> float:
        """Measure the held-out tasks; the part of all of them that succeeded."""
        validation = self._config.trainer.validation
        self._clock.restart()
        before = self._engine.stats()
        with self._clock.phase("validation"):
            groups = await self._rollouts.run_groups(
                self._validation_tasks,
                step=self._state.step,
                split="validation",
                num_repeat=validation.num_repeat,
                temperature=self._config.validation_temperature,
            )
        self._empty_steps.look_at(groups, at_start=self._state.step == 0)
        measures = episode_metrics(groups) | engine_metrics(before, self._engine.stats(), self._clock["validation"])
        measures[SUCCESS] = success_of_all(measures, len(self._validation_tasks) * validation.num_repeat)
        self._record("validation", measures)
        return measures[SUCCESS]

    def _recorded_success(self, step: int) -> float | None:
        """Of a measurement that an earlier process completed, after the checkpoint of the same step was written."""
        line = self._metrics.find(step, "validation")
        return None if line is None else line.metrics[SUCCESS]

    def _keep_if_best(self, success: float) -> None:
        if self._checkpoints.would_be_best(success):
            with self._clock.phase("save"):
                self._checkpoints.save(self._state.step, model=self._policy.save_model, score=success)

    def _annotate(self, batch: TrainingBatch, groups: list[EpisodeGroup], logprobs: OwnLogprobs) -> None:
        """Write beside each recorded episode its advantage and the trainer's log-probabilities, or why it has none."""
        self._episodes.annotate_batch(batch)
        for group in groups:
            for episode in group.episodes:
                if group.dropped is not None:
                    self._episodes.annotate(episode.episode_id, not_trained=group.dropped)
                elif episode.episode_id in logprobs:
                    trained = of_sampled(episode, logprobs[episode.episode_id])
                    self._episodes.annotate_logprobs(episode.episode_id, trained)

    def _record(self, split: Split, measures: dict[str, float]) -> None:
        """Write one line of metrics; the episodes that it speaks of are on disk before it."""
        measures |= self._clock.metrics() | {"time/trained_s": self._state.trained_s}
        self._episodes.flush()
        self._metrics.append(self._state.step, split, measures)
        self._observer.on_record(self._state.step, split, measures)

    def _save(self) -> None:
        def write_state(folder: Path) -> None:
            self._policy.save_state(folder)
            (folder / _LOOP_FILE).write_bytes(orjson.dumps(asdict(self._state), option=orjson.OPT_INDENT_2))

        self._episodes.flush()
        with self._clock.phase("save"):
            self._checkpoints.save(
                self._state.step, model=self._policy.save_model, state=write_state, score=self._state.success
            )
        self._saved = replace(self._state)


def require_zero(balance: TokenBalance) -> None:
    """Raises TrainerError where a sampled token is in no account, or in two (law 3)."""
    if balance.difference:
        raise TrainerError(
            f"the token balance is off by {balance.difference}: {balance}",
            hint="this is a defect of astune; the run's folder holds every episode of the step, please report it",
        )
