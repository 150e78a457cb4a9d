"""Checks that the servers sample with the trained weights, after each step and each weight sync.

Three signs, each of which ends the run: tokens older than allowed, probabilities of servers and trainer that do not
correlate, and a server whose answer to a fixed text stays the same although the weights moved.
"""

from __future__ import annotations

from astune.backbone.cluster.messages import WeightsSynced
from astune.schema import TrainerError
from astune.trainer.step_report import StepReport

MIN_CORRELATION = 0.97
"""Lowest correlation of the probabilities that servers and trainer give to the same tokens: above 0.999 with the same
weights in float32, some 0.85 after one step whose weights did not arrive. bfloat16 is to stay above it, too."""
_TOKENS_TO_JUDGE = 100
_MOVED_FOR_SURE = 5e-5
"""Sum of learning rates after which a text must be answered otherwise. An optimiser moves a weight by about the
rate, and bfloat16 tells weights of 0.01 apart by 6e-5: servers rightly answer the same after a step at 1e-6."""


class WeightChecks:
    """Remembers how far the weights moved, and since when each server answers the same.

    Args:
        engine: name of the engine, for messages.
        max_staleness: steps that a trained token's weights may be older than allowed, `trainer.max_staleness`.
    """

    def __init__(self, engine: str, *, max_staleness: int) -> None:
        self._engine = engine
        self._max_staleness = max_staleness
        self._moved_by: dict[int, float] = {}
        self._answers: dict[str, tuple[int, list[float]]] = {}

    @property
    def moved(self) -> bool:
        """Return whether weights were trained since this process began."""
        return any(self._moved_by.values())

    def require_own_weights(self, step: int, report: StepReport) -> None:
        """Raise TrainerError where a step trained tokens that too old weights sampled, or other ones than recorded."""
        oldest = int(report.metrics["versions_behind_max"])
        if oldest > self._max_staleness:
            raise TrainerError(
                f"step {step} was given tokens sampled {oldest} steps before, and trainer.max_staleness is "
                f"{self._max_staleness}",
                hint="this is a defect of astune",
            )
        correlation, tokens = (
            report.metrics.get("engine_correlation"),
            report.metrics.get("versions_behind_0/tokens", 0),
        )
        if correlation is not None and tokens >= _TOKENS_TO_JUDGE and not correlation >= MIN_CORRELATION:
            raise TrainerError(
                f"in step {step} the servers' probabilities and the trainer's correlate by {correlation:.3f}: "
                "the servers did not sample with the weights that are trained",
                hint=f"weights do not reach them: look into {self._engine}'s log for where they are given",
            )

    def note_step(self, step: int, report: StepReport) -> None:
        """Remember by how much a recorded step moved the weights."""
        if report.metrics.get("grad_norm", 0.0) > 0:
            self._moved_by[step] = report.metrics.get("lr", 0.0)

    def require_loaded(self, report: WeightsSynced) -> None:
        """Raise TrainerError where a server answers a text as before, although it loaded weights that moved since."""
        for server, answer in report.servers.items():
            since, before = self._answers.get(server, (report.version, None))
            if answer != before:
                self._answers[server] = (report.version, answer)
            elif sum(lr for step, lr in self._moved_by.items() if since < step <= report.version) >= _MOVED_FOR_SURE:
                raise TrainerError(
                    f"{server} was given the weights of step {report.version}, and its log-probabilities of a fixed "
                    "text did not change",
                    hint=f"weights do not reach it: look into {self._engine}'s log for where they are given",
                )
