"""Writes a cluster's run from what its processes report: episodes as they end, steps and measurements by the ledger."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from astune.algorithm import Algorithm
from astune.backbone.base import RunObserver
from astune.backbone.cluster import trained
from astune.backbone.cluster.collected import Collected, TransitionError
from astune.backbone.cluster.job import Job
from astune.backbone.cluster.messages import (
    Answer,
    AttemptStarted,
    BatchExplored,
    CheckpointSaved,
    GroupFinished,
    Message,
    PhaseBegan,
    RunFailed,
    StepTrained,
    TasksMeasured,
    WeightsSynced,
)
from astune.backbone.cluster.weight_checks import WeightChecks
from astune.backbone.recorder import Recorder
from astune.runs import EpisodeStore
from astune.schema import Episode, Split, Task, TrainerError
from astune.trainer.ledger import RolloutResult, StepLedger, account
from astune.trainer.loss import PolicyLoss
from astune.trainer.step_report import StepReport

P = ParamSpec("P")
R = TypeVar("R")
_RUN_ENDED = "the run ended before its step"


class RunWriter:
    """Hands each report to where it belongs. `write` raises AstuneError where the run cannot continue."""

    def __init__(
        self, job: Job, ledger: StepLedger, algorithm: Algorithm, episodes: EpisodeStore, observer: RunObserver
    ) -> None:
        self.job = job
        self.ledger = ledger
        self._loss = PolicyLoss(algorithm, job.config.trainer.loss)
        self._recorder = Recorder(episodes, observer)
        self._observer = observer
        self._collected = Collected(_tasks(job), job.engine)
        self._checks = WeightChecks(job.engine, max_staleness=job.config.trainer.max_staleness)
        self._turn = asyncio.Lock()

    @property
    def is_recording(self) -> bool:
        """Return whether a step, a measurement or a checkpoint is being recorded, which may take long."""
        return self._turn.locked()

    async def write(self, message: Message) -> Answer:
        """Record a report.

        Raises:
            TransitionError: it is out of order.
            TrainerError: it says that the run cannot continue.
        """
        per_step = self.job.config.trainer.tasks_per_step
        match message:
            case AttemptStarted():
                self._recorder.on_started(message.episode_id, self._collected.start(message))
            case GroupFinished():
                self._collected.finish_group(message)
            case BatchExplored():
                self._collected.require_explored(message.batch, per_step)
            case StepTrained():
                rollouts = self._collected.take_step(message.groups, per_step, message.step)
                report = await self._in_turn(self._record_step, message, rollouts)
                if report is not None:
                    self._checks.note_step(message.step, report)
            case TasksMeasured():
                rollouts = self._collected.take_validation(len(self.job.validation_tasks), message.step)
                return await self._in_turn(self._record_measurement, message, rollouts)
            case CheckpointSaved():
                await self._in_turn(self._save_checkpoint, message, moved=self._checks.moved)
            case WeightsSynced():
                self._checks.require_loaded(message)
            case PhaseBegan():
                self._observer.on_phase(message.name)
            case RunFailed():
                raise TrainerError(message.error, hint=f"{self.job.engine}: see its log in the run's folder")
            case _:
                raise TransitionError(f"{type(message).__name__} is no report", hint="this is a defect of astune")
        return Answer()

    def write_episode(self, episode: Episode) -> None:
        """Store a finished or failed episode. Raises TransitionError where its attempt was never started."""
        self._collected.end(episode)
        if episode.status == "error":
            self._recorder.on_attempt_failed(episode)
        else:
            self._recorder.on_finished(episode)

    def close(self) -> None:
        """Annotate episodes that were run ahead of the end: nothing was learnt from them."""
        self.ledger.leave_untrained(self._collected.left(), _RUN_ENDED)

    async def _in_turn(self, record: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Record in another thread, for other reports not to wait, and in the order in which these were received."""
        async with self._turn:
            return await asyncio.to_thread(record, *arguments, **named)

    def _record_step(self, message: StepTrained, rollouts: RolloutResult) -> StepReport | None:
        step, ledger = message.step, self.ledger
        if step != ledger.step + 1:
            raise TransitionError(
                f"{self.job.engine} reported step {step} after step {ledger.step}", hint="this is a defect of astune"
            )
        batch = ledger.batch(step, rollouts, self._loss.algorithm)
        account(rollouts.balance, trained=trained.n_tokens(message.rows))
        report: StepReport | None = None
        if message.rows:
            report = trained.report_of(message.rows, batch, self._loss, metrics=message.metrics, lr=message.lr)
            self._checks.require_own_weights(step, report)
        engine = {f"{self.job.engine}/{name}": one for name, one in message.metrics.items() if math.isfinite(one)}
        order = self.job.order_after(step)
        ledger.record_step(batch, rollouts, report, seconds=message.phases, order=order, more=engine)
        return report

    def _record_measurement(self, message: TasksMeasured, rollouts: RolloutResult) -> Answer:
        success = self.ledger.record_validation(message.step, rollouts, seconds={"validation": message.seconds})
        self.ledger.rate(message.step)
        return Answer(success=success, enough=self.ledger.enough)

    def _save_checkpoint(self, message: CheckpointSaved, *, moved: bool) -> None:
        if message.step != self.ledger.step:
            raise TransitionError(
                f"a checkpoint of step {message.step} was saved, and step {self.ledger.step} is the last one"
            )
        self.job.save_checkpoint(self.ledger, message.folder, dtype=message.dtype, moved=moved)


def _tasks(job: Job) -> dict[tuple[Split, str], Task]:
    tasks: dict[tuple[Split, str], Task] = {("train", task.task_id): task for step in job.steps.tasks for task in step}
    tasks.update({("validation", task.task_id): task for task in job.validation_tasks})
    return tasks
