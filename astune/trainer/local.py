"""The training loop of one machine: roll out, judge, learn, publish the weights, record.

`_train_step` is the whole of GRPO, top to bottom. The loop knows neither which agent produced the tokens
nor how gradients are computed; it owns the order of phases and the clock. The ledger records.

A checkpoint is written while the next step rolls out, which changes neither weights nor moments. The update waits for
it, so that no copy of them is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats, InferenceEngine
from astune.engine.cpu_threads import end_idle_helpers
from astune.schema import EpisodeGroup, Task, TrainingBatch, to_the_end
from astune.trainer.batch import drop_without_variance
from astune.trainer.checkpoint import random_state
from astune.trainer.ledger import RolloutResult, StepLedger
from astune.trainer.measures import PhaseClock
from astune.trainer.policies import Policies
from astune.trainer.policy import PolicyTrainer
from astune.trainer.step_report import StepReport

if TYPE_CHECKING:
    from astune.rollout import DemonstrationPool, RolloutPool
    from astune.task_reader import TaskOrder


class LocalTrainer:
    """Trains `policy` on what `rollouts` brings, until `total_steps` or the success on validation tasks asked for.

    `policy`, `engine`, `order` and the run's records are at the ledger's resume point.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        policy: PolicyTrainer | Policies,
        engine: InferenceEngine,
        rollouts: RolloutPool | DemonstrationPool,
        order: TaskOrder,
        validation_tasks: list[Task],
        ledger: StepLedger,
        on_phase: Callable[[str], None],
    ) -> None:
        self._config = config
        self._policy = policy
        self._engine = engine
        self._rollouts = rollouts
        self._order = order
        self._validation_tasks = validation_tasks
        self._ledger = ledger
        self._clock = PhaseClock(on_phase)
        self._saved_step = ledger.step
        self._writing: asyncio.Task[None] | None = None
        self._recorded_version = policy.version

    async def fit(self) -> None:
        """Train to the end; cancelling it, or an error, leaves a checkpoint of the last whole step."""
        ledger = self._ledger
        try:
            await self._measure()
            self._keep()
            while not self._is_over:
                await self._train_step(ledger.step + 1)
                await self._measure()
                self._keep()
        finally:
            await self._written()
            # Weights of a step that failed half way belong to no step; the last checkpoint is the resume point then.
            if self._policy.version == self._recorded_version and ledger.step > self._saved_step:
                self._save()
                await self._written()

    async def _train_step(self, step: int) -> None:
        """A step of GRPO (Shao et al. 2024, arXiv 2402.03300), from tasks to new weights."""
        self._begin()
        if isinstance(self._policy, Policies):
            await self._written()
            await self._policy.enter_league(step, self._engine)
        before = self._engine.stats()
        with self._clock.phase("rollout"):
            groups = await self._collect(step)
        rollouts = self._rolled_out(groups, before, "rollout")
        batch = self._ledger.batch(step, rollouts, self._policy.algorithm)
        _, cancelled = await to_the_end(self._learn_and_record(batch, rollouts))
        if cancelled:
            raise asyncio.CancelledError

    async def _learn_and_record(self, batch: TrainingBatch, rollouts: RolloutResult) -> None:
        """Weights, engine and records move on together, or, where this is not reached, not at all."""
        await self._written()
        report: StepReport | None = None
        if batch.groups:
            with self._clock.phase("train"):
                await self._policy.make_room(self._engine)
                try:
                    report = await asyncio.to_thread(self._policy.step, batch)
                except BaseException:
                    await self._policy.publish(self._engine)  # requests to it wait for weights
                    raise
            with self._clock.phase("sync"):
                await self._policy.publish(self._engine)
        order, seconds = self._order.state_dict(), self._clock.seconds
        seconds.pop("save", None)  # what was waited for is of the step before
        self._ledger.record_step(batch, rollouts, report, seconds=seconds, order=order)
        self._recorded_version = self._policy.version

    def _begin(self) -> None:
        """Count a rollout's time from here; this thread has loaded or saved, and the engine's computes next."""
        end_idle_helpers()
        self._clock.restart()

    async def _collect(self, step: int) -> list[EpisodeGroup]:
        """Groups of `tasks_per_step` tasks; those whose rewards are all equal are replaced within the budget."""
        trainer = self._config.trainer
        groups = await self._roll_out(step, self._order.take(trainer.tasks_per_step))
        budget = trainer.dynamic_sampling.max_extra_tasks
        while budget > 0 and (missing := trainer.tasks_per_step - sum(group.dropped is None for group in groups)) > 0:
            extra = min(missing, budget)
            budget -= extra
            groups += await self._roll_out(step, self._order.take(extra))
        return groups

    async def _roll_out(self, step: int, tasks: list[Task]) -> list[EpisodeGroup]:
        groups = await self._rollouts.run_groups(tasks, step=step, split="train")
        drop_without_variance(groups, self._policy.algorithm)
        return groups

    async def _measure(self) -> None:
        """Run the validation tasks where it is due and not done."""
        ledger = self._ledger
        if not ledger.is_measured(ledger.step):
            return
        if ledger.score(ledger.step) is None:
            await self._validate()
        ledger.rate(ledger.step)

    async def _validate(self) -> None:
        self._begin()
        before = self._engine.stats()
        with self._clock.phase("validation"):
            groups = await self._rollouts.run_groups(self._validation_tasks, step=self._ledger.step, split="validation")
        rollouts = self._rolled_out(groups, before, "validation")
        self._ledger.record_validation(self._ledger.step, rollouts, seconds=self._clock.seconds)

    def _rolled_out(self, groups: list[EpisodeGroup], before: EngineStats, phase: str) -> RolloutResult:
        counted = self._engine.stats() - before
        return RolloutResult(groups, counted, self._clock.seconds[phase], self._rollouts.balance(groups, counted))

    @property
    def _is_over(self) -> bool:
        return self._ledger.step >= self._config.trainer.total_steps or self._ledger.enough

    def _keep(self) -> None:
        """Save what is due of the last step: all of it, or its model alone where that is the best one, never both."""
        ledger = self._ledger
        is_due = ledger.step % self._config.trainer.save_freq == 0 or self._is_over
        if is_due and ledger.step > self._saved_step:
            self._save()
        elif ledger.would_be_best:
            self._write(ledger.to_save(model=self._policy.save_model))

    def _save(self) -> None:
        state = partial(self._policy.save_state, rng=random_state())
        self._write(self._ledger.to_save(model=self._policy.save_model, state=state))
        self._saved_step = self._ledger.step

    def _write(self, writing: Callable[[], object]) -> None:
        """Write a checkpoint from now on; nothing that it holds, and no other one, may change until `_written`."""

        def write() -> None:
            try:
                writing()
            finally:
                end_idle_helpers()

        self._writing = asyncio.ensure_future(asyncio.to_thread(write))

    async def _written(self) -> None:
        """Wait until the checkpoint that is being written, if any, is on disk.

        Raises:
            RunStoreError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        with self._clock.phase("save"):
            _, cancelled = await to_the_end(writing)
        if cancelled:
            raise asyncio.CancelledError
