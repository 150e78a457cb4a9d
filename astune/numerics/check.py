"""Training steps with a zero learning rate that compare engine and trainer.

Everything is as in training but two things: the learning rate is zero, and between two steps every weight is moved by a
little noise. Without it weights that never reached the engine could not be distinguished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import torch

from astune.config.schema import AstuneConfig
from astune.engine.base import InferenceEngine
from astune.numerics.calls import RecordedCall, recorded_calls, spread
from astune.numerics.draws import Draws
from astune.numerics.limits import FLOAT32, Limits, rounding_limits
from astune.numerics.reading import Reading
from astune.numerics.suspects import Suspects, Trial, name_of, rounding_of
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup, TrainerError
from astune.task_reader import TaskOrder
from astune.trainer.batch import batch_of
from astune.trainer.microbatch import MicroBatch
from astune.trainer.mismatch import Mismatch
from astune.trainer.policy import PolicyTrainer
from astune.trainer.policy_model import PolicyModel

TRIED_CALLS = 32
"""Calls that suspects are tried on, each with a forward pass of its own; some hundreds of tokens."""
MOVED = 2.0
"""Noise moves log-probabilities by this many times the limit, so that stale weights cannot stay below it."""
MOVED_CALLS = 12
"""Calls that say how much the noise has moved."""
FIRST_NOISE = 0.01
"""Relative size of the noise, doubled until it has moved enough. A bfloat16 weight is rounded by up to 0.004."""
LARGEST_NOISE = 0.5


@dataclass(frozen=True, slots=True)
class StepNumerics:
    """A step: `version` is that of the trainer's weights, `mismatch` holds those that the engine recorded.

    `limits` are those of the step's own weights and tokens; `evidence` against the draws is that of `Draws.evidence`.
    """

    step: int
    version: int
    mismatch: Mismatch
    limits: Limits
    evidence: float

    @property
    def exceeded(self) -> dict[str, tuple[float, float]]:
        return self.limits.exceeded_by(self.mismatch)

    @property
    def wrong_versions(self) -> list[int]:
        return [version for version in self.mismatch.by_version() if version != self.version]


@dataclass(slots=True)
class NumericsReport:
    """Report of the measurements; beyond the limits, `beyond` says so and `trials` what was tried to explain it."""

    dtype: str
    steps: list[StepNumerics] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.beyond

    @property
    def cause(self) -> Trial | None:
        """The trial that explains it best; None where none does."""
        return min((trial for trial in self.trials if trial.explains), key=lambda trial: trial.after, default=None)


@dataclass
class NumericsCheck:
    """Measures `policy`, which was loaded with a learning rate of zero, against `engine`.

    Args:
        config: the run's configuration, with that learning rate.
        folder: the model's files, for its chat template.
        on_phase: receives a description of each phase.
    """

    config: AstuneConfig
    _: KW_ONLY
    policy: PolicyTrainer
    engine: InferenceEngine
    rollouts: RolloutPool
    order: TaskOrder
    folder: Path
    on_phase: Callable[[str], None]

    def __post_init__(self) -> None:
        self._earlier: list[tuple[int, PolicyModel]] = []
        self._random = torch.Generator().manual_seed(self.config.seed)

    async def run(self, *, steps: int, tasks: int) -> NumericsReport:
        """Up to `steps` steps of `tasks` tasks; the first one that is beyond the limits is examined, and ends it.
        Raises TrainerError if no episode finished, or a number is not finite."""
        report = NumericsReport(name_of(self.policy.model.dtype))
        for step in range(1, steps + 1):
            self.on_phase(f"step {step} of {steps}: rollouts")
            groups = await self._roll_out(step, tasks)
            calls = recorded_calls(groups)
            self.on_phase(f"step {step} of {steps}: the trainer's log-probabilities")
            measured = await asyncio.to_thread(self._measure, step, groups, calls)
            report.steps.append(measured)
            report.beyond.extend(self._beyond(measured))
            if report.beyond:
                self.on_phase(f"step {step} of {steps}: looking for the cause")
                report.trials.extend(await asyncio.to_thread(self._examine, measured, calls))
                break
            if step < steps:
                self.on_phase(f"step {step} of {steps}: handing the weights over")
                await asyncio.to_thread(self._move_weights, calls, MOVED * measured.limits.mean)
                await self.engine.load_weights(self.policy)
        return report

    async def _roll_out(self, step: int, tasks: int) -> list[EpisodeGroup]:
        groups = await self.rollouts.run_groups(self.order.take(tasks), step=step, split="train")
        used = [group for group in groups if group.dropped is None]
        if not used:
            raise TrainerError(
                f"no group of episodes finished: {groups[0].dropped}",
                hint="the failure's own words stand above: mostly the workflow or the judge",
            )
        return used

    def _measure(self, step: int, groups: list[EpisodeGroup], calls: list[RecordedCall]) -> StepNumerics:
        """A training step with a learning rate of zero, and where the tokens lie in the trainer's distributions."""
        version = self.policy.version
        report = self.policy.step(batch_of(step, groups, self.policy.algorithm))
        model, temperature = self.policy.model, self.config.rollout.temperature
        microbatches = self._packed(calls)
        draws = Draws.of(Reading.of(model, microbatches), model.head(temperature))
        limits = FLOAT32
        if model.dtype != torch.float32:
            limits = rounding_limits(rounding_of(model, torch.float32, microbatches, temperature))
        return StepNumerics(step, version, report.mismatch, limits, draws.evidence())

    def _beyond(self, measured: StepNumerics) -> list[str]:
        found = [f"{name} {value:.2g} is above {limit:.2g}" for name, (value, limit) in measured.exceeded.items()]
        if measured.evidence > measured.limits.evidence:
            found.append(
                f"the evidence against the draws, {measured.evidence:.1f}, is above {measured.limits.evidence:g}"
            )
        if measured.wrong_versions:
            found.append(f"tokens carry weights version {measured.wrong_versions[0]}, expected {measured.version}")
        return found

    def _examine(self, measured: StepNumerics, calls: list[RecordedCall]) -> list[Trial]:
        def suspects(some: list[RecordedCall]) -> Suspects:
            return Suspects(
                self.policy,
                some,
                version=measured.version,
                earlier=self._earlier,
                limits=measured.limits,
                temperature=self.config.rollout.temperature,
                folder=self.folder,
            )

        if measured.exceeded:
            return list(suspects(spread(calls, TRIED_CALLS)).of_the_differences())
        if measured.evidence > measured.limits.evidence:
            return list(suspects(calls).of_the_draws())
        return [wrong_label(measured)]

    def _move_weights(self, calls: list[RecordedCall], enough: float) -> None:
        """Add noise to the weights until log-probabilities have moved by `enough` in the mean, so that old ones show.

        The head's alone has to move them as far, where it is trained.
        """
        model, temperature = self.policy.model, self.config.rollout.temperature
        old = model.frozen()
        self._earlier = [(self.policy.version - 1, old), *self._earlier[-1:]]  # each is a copy of the model
        some = spread(calls, MOVED_CALLS)
        before_E = self._read(some).logprobs(old.head(temperature))
        head_is_trained = model.head(temperature).weight_grad_VD is not None
        noise = FIRST_NOISE
        while noise < LARGEST_NOISE:
            model.master_weights.shake(noise, self._random)
            reading = self._read(some)
            after_E = reading.logprobs(model.head(temperature))
            moved = [after_E - before_E]
            if head_is_trained:
                moved.append(after_E - reading.logprobs(old.head(temperature)))
            if min(float(difference_E.abs().mean()) for difference_E in moved) > enough:
                return
            noise *= 2
        raise TrainerError(
            "noise in the weights does not change the model's outputs: whether the engine gets them cannot be seen",
            hint="this is a defect of astune; with model.lora the adapters may be too small to matter",
        )

    def _read(self, calls: list[RecordedCall]) -> Reading:
        return Reading.of(self.policy.model, self._packed(calls))

    def _packed(self, calls: list[RecordedCall]) -> list[MicroBatch]:
        return self.policy.packed([call.timeline() for call in calls])


def wrong_label(measured: StepNumerics) -> Trial:
    """Probabilities and draws are those of the present weights, but the tokens say that others sampled them."""
    mean = measured.mismatch.mean
    return Trial(
        "weights version",
        f"tokens of version {measured.version} carry version {measured.wrong_versions[0]}, but their probabilities are "
        f"those of version {measured.version}: the weights arrived and the number did not",
        "load_weights has to set the version that completions carry to that of its source",
        "mean difference",
        mean,
        mean,
        explains=True,
    )
