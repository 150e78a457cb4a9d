"""The ledger of a run's training steps: what every backbone decides and records of a step.

A backbone rolls out and updates weights. Which groups are trained and with which advantages, where each sampled token
went, metrics, annotations, the best model, when the run is over and where it resumes are decided here:

    rollouts of a step    -> batch -> the backbone's update -> record_step     metrics, annotations, resume point
    validation rollouts   -> record_validation -> rate, save                   scores, best model, early stop

The ledger is the only writer of the metrics of shipped backbones. It knows neither engines nor gradients,
and imports no torch: a debug run has none where its model is behind a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astune.algorithm import Algorithm
from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats
from astune.runs import CheckpointStore, EpisodeStore, MetricsLog, balance_metrics
from astune.runs.held_out import SUCCESS
from astune.schema import Episode, EpisodeGroup, Split, TokenBalance, TrainerError, TrainingBatch
from astune.trainer.batch import batch_of
from astune.trainer.league import league_metrics
from astune.trainer.measures import engine_metrics, episode_metrics, of_all
from astune.trainer.own_logprobs import OwnLogprobs, of_sampled
from astune.trainer.resume_point import ResumePoint
from astune.trainer.reward_watch import RewardWatch

if TYPE_CHECKING:
    from astune.trainer.step_report import StepReport

_EMPTY_STEPS = 3
"""Consecutive empty steps after which a run ends: an outage passes, a defect stays."""
OnRecord = Callable[[int, Split, dict[str, float]], None]
"""Receives (step, split, metrics) of each line of metrics when it is on disk."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Groups of episodes, and what the engine `counted` for them: the difference of two readings of its counters.

    `balance` accounts for the sampled tokens as if all groups that are not dropped were trained.
    """

    groups: list[EpisodeGroup]
    counted: EngineStats
    seconds: float
    balance: TokenBalance

    def metrics(self) -> dict[str, float]:
        """Return metrics of the episodes and the engine, under the names that every backbone reports."""
        return episode_metrics(self.groups) | engine_metrics(self.counted, self.seconds)


def is_measured(config: AstuneConfig, step: int) -> bool:
    """Return whether validation tasks, where there are any, are run with the weights of `step`."""
    trainer = config.trainer
    return step % trainer.test_freq == 0 or step == trainer.total_steps


class StepLedger:
    """Records one run's steps in its directory, from `resumed` on.

    Args:
        n_validation_tasks: tasks of a measurement; 0 where nothing is measured.
        resumed: where an earlier process of the run came to; the run's records end there.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        episodes: EpisodeStore,
        metrics: MetricsLog,
        checkpoints: CheckpointStore,
        n_validation_tasks: int,
        resumed: ResumePoint | None = None,
        on_record: OnRecord = lambda *_: None,
    ) -> None:
        self.resume_point = resumed or ResumePoint()
        self._config = config
        self._episodes = episodes
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._on_record = on_record
        self._n_validation_tasks = n_validation_tasks
        self._n_empty = 0
        """Steps and measurements of which no episode finished, one after the other until now."""
        lines = list(metrics.read())
        self._scores = {line.step: line.metrics[SUCCESS] for line in lines if line.kind == "validation"}
        self._watch = RewardWatch(line.metrics for line in lines if line.kind == "train")

    @property
    def step(self) -> int:
        """The last recorded step, 0 before the first."""
        return self.resume_point.step

    @property
    def last_measured(self) -> int:
        """The last step whose weights the validation tasks were run with; -1 for none."""
        return max(self._scores, default=-1)

    @property
    def success(self) -> float | None:
        """Success on the validation tasks at the last measurement."""
        return self._scores.get(self.last_measured)

    @property
    def enough(self) -> bool:
        """Return whether the last measurement reached `trainer.validation.stop_at_success`."""
        stop = self._config.trainer.validation.stop_at_success
        return stop is not None and self.success is not None and self.success >= stop

    @property
    def finished(self) -> bool:
        """Return whether the run is over: every step recorded and the last one measured, or enough reached."""
        last = self._config.trainer.total_steps
        return self.enough or (self.step >= last and (self.last_measured >= last or not self.is_measured(last)))

    @property
    def unrated(self) -> set[int]:
        """Recorded steps that wait for their measurement; their models must stay until then."""
        return {step for step in range(self.last_measured + 1, self.step + 1) if self.is_measured(step)}

    def is_measured(self, step: int) -> bool:
        """Return whether validation tasks are run with the weights of `step`."""
        return self._n_validation_tasks > 0 and is_measured(self._config, step)

    def batch(self, step: int, rollouts: RolloutResult, algorithm: Algorithm) -> TrainingBatch:
        """The batch that a step trains, of all groups that were rolled out for it.

        What is left out of its groups goes into accounts of its own.

        Raises:
            TrainerError: no episode finished, in the first step or in several one after the other.
        """
        self._require_episodes(rollouts.groups, at_start=step == 1)
        policy_of = self._config.policy_of if self._config.models else None
        trainer = self._config.trainer
        batch = batch_of(step, rollouts.groups, algorithm, trainer.samples, policy_of, trainer.tasks_per_step)
        rollouts.balance.trained -= batch.left_out.total()
        rollouts.balance.masked += batch.left_out
        return batch

    def record_step(
        self,
        batch: TrainingBatch,
        rollouts: RolloutResult,
        report: StepReport | None,
        *,
        seconds: Mapping[str, float],
        order: Mapping[str, Any],
        more: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Close a step: account for its tokens, annotate its episodes, write its metrics, move the resume point.

        Args:
            report: what the update did; None where no group of the batch taught anything.
            seconds: duration of each phase of the step.
            order: the position in the order of training tasks after the step.
            more: metrics of the backbone's own.

        Returns:
            the metrics as written.

        Raises:
            TrainerError: a sampled token is in no account, or in two; nothing is recorded.
        """
        account(rollouts.balance, trained=0 if report is None else report.trained_tokens)
        self._annotate(batch, rollouts.groups, {} if report is None else report.logprobs)
        measures = rollouts.metrics() | dict(more or {}) | balance_metrics(rollouts.balance)
        measures |= self._watch.look_at(batch.step, rollouts.groups) | league_metrics(self._config, rollouts.groups)
        if report is not None:
            measures |= {f"train/{name}": value for name, value in report.metrics.items()}
            measures["train/train_tokens_per_s"] = report.trained_tokens / max(seconds["train"], 1e-9)
        moved = ResumePoint(batch.step, self.resume_point.trained_s + sum(seconds.values()), dict(order))
        self._record(batch.step, "train", measures, seconds, moved.trained_s)
        self.resume_point = moved
        return measures

    def begin_untrained(self, step: int) -> None:
        """Move to a step of a run that does not train, whose episodes and metrics are recorded as its own."""
        self.resume_point = ResumePoint(step, self.resume_point.trained_s, {})

    def record_untrained(
        self, rollouts: RolloutResult, *, seconds: Mapping[str, float], more: Mapping[str, float] | None = None
    ) -> None:
        """Record rollouts of a run that does not train; all their groups are dropped.

        `more` are metrics of the backbone's own.

        The balance need not be zero: an endpoint of text alone counts tokens, and its episodes hold characters.
        """
        self._annotate(TrainingBatch(self.step, [], []), rollouts.groups, {})
        measures = rollouts.metrics() | dict(more or {}) | balance_metrics(rollouts.balance)
        self._record(self.step, "train", measures, seconds, self.resume_point.trained_s)

    def record_validation(self, step: int, rollouts: RolloutResult, *, seconds: Mapping[str, float]) -> float:
        """Record the validation tasks as run with the weights of `step`.

        Returns:
            the part of all of them that succeeded; what did not finish counts as failed.

        Raises:
            TrainerError: no episode finished, before the first step or in several steps one after the other.
        """
        self._require_episodes(rollouts.groups, at_start=step == 0)
        measures = rollouts.metrics()
        expected = self._n_validation_tasks * self._config.trainer.validation.num_repeat
        measures |= of_all(measures, expected)
        self._record(step, "validation", measures, seconds, self.resume_point.trained_s)
        self._scores[step] = measures[SUCCESS]
        return measures[SUCCESS]

    def score(self, step: int) -> float | None:
        """Success on the validation tasks with the weights of `step`; None where they were not measured."""
        return self._scores.get(step)

    def rate(self, step: int) -> None:
        """Give the checkpoint of a measured step, where it was saved before, its score."""
        self._checkpoints.rate(step, self._scores[step], unrated=self.unrated)

    @property
    def would_be_best(self) -> bool:
        """Return whether the model of the last recorded step was measured, and is to be kept as the best one."""
        score = self.score(self.step)
        return score is not None and self._checkpoints.would_be_best(score)

    def save(self, *, model: Callable[[Path], object], state: Callable[[Path], object] | None = None) -> None:
        """Save a checkpoint of the last recorded step; with `state` it is one to resume from.

        Args:
            model: writes the model into the folder that it is given.
            state: writes what the backbone needs to resume, beside the resume point.
        """
        self.to_save(model=model, state=state)()

    def to_save(
        self, *, model: Callable[[Path], object], state: Callable[[Path], object] | None = None
    ) -> Callable[[], object]:
        """Return the work of `save` for another thread; until it is done, no other thread may use the checkpoints."""
        point = self.resume_point

        def write_state(folder: Path) -> None:
            if state is not None:
                state(folder)
            point.write(folder)

        self._episodes.flush()
        return partial(
            self._checkpoints.save,
            self.step,
            model=model,
            state=write_state if state is not None else None,
            score=self.score(self.step),
            unrated=self.unrated,
        )

    def leave_untrained(self, episodes: Iterable[Episode], why: str) -> None:
        """Annotate training episodes that no step will train, since the run ended."""
        for episode in episodes:
            if episode.split == "train" and episode.status != "error":
                self._episodes.annotate(episode.episode_id, not_trained=why)
        self._episodes.flush()

    def _require_episodes(self, groups: Sequence[EpisodeGroup], *, at_start: bool) -> None:
        """Raise TrainerError, with the first failure's own words, at the start of a run or after some empty steps."""
        self._n_empty = 0 if any(group.episodes for group in groups) else self._n_empty + 1
        if self._n_empty and (at_start or self._n_empty >= _EMPTY_STEPS):
            first = next((episode.error for group in groups for episode in group.failed_attempts), "there was none")
            raise TrainerError(f"no episode finished; the first failure: {first}")

    def _annotate(self, batch: TrainingBatch, groups: Sequence[EpisodeGroup], logprobs: OwnLogprobs) -> None:
        """Write beside each recorded episode its advantage and the trainer's log-probabilities, or why it has none."""
        self._episodes.annotate_batch(batch)
        for group in groups:
            for episode in group.episodes:
                if group.dropped is not None:
                    self._episodes.annotate(episode.episode_id, not_trained=group.dropped)
                elif episode.episode_id in logprobs:
                    self._episodes.annotate_logprobs(
                        episode.episode_id, of_sampled(episode, logprobs[episode.episode_id])
                    )

    def _record(
        self, step: int, split: Split, measures: dict[str, float], seconds: Mapping[str, float], trained_s: float
    ) -> None:
        """Write one line of metrics; the episodes that it counts are on disk before it."""
        measures |= {f"time/{name}_s": value for name, value in seconds.items()} | {"time/trained_s": trained_s}
        self._episodes.flush()
        self._metrics.append(step, split, measures)
        self._on_record(step, split, measures)


def account(balance: TokenBalance, *, trained: int) -> None:
    """Count a step's trained tokens. Raises TrainerError where a sampled token is in no account, or in two (law 3)."""
    balance.trained = trained
    if balance.difference:
        raise TrainerError(
            f"the token balance is off by {balance.difference}: {balance}",
            hint="this is a defect of astune; the run's folder holds every episode of the step, please report it",
        )
