"""Settings of the flywheel: from users' feedback to a model that is promoted only when it is proven better."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class FlywheelConfig(StrictModel):
    """One turn from feedback to a decision: `astune flywheel`. The store is `task_reader.feedback_tracing.path`."""

    folder: str = "flywheel"
    """Where turns, promoted models and their history are kept; relative to the working directory."""
    imports: list[str] = Field(default_factory=list)
    """Traces and ratings to import when a turn begins, as `astune feedback import` reads them."""
    learn_by: Literal["sft", "dpo", "reinforcement"] = "sft"
    """`sft` learns accepted and corrected answers, `dpo` prefers these to rejected ones, `reinforcement` trains on what
    was asked, with the experiment's algorithm, workflow and judge."""
    held_out: str = ""
    """The frozen set: a JSONL file of tasks that the new model has to be better on. It stays as it is between turns."""
    regression: str = ""
    """A JSONL file of tasks that the new model must not be worse on; empty measures none."""
    replay: str = ""
    """A JSONL file of original tasks, of which every turn trains some, so that they are not forgotten."""
    replay_share: float = Field(default=0.3, ge=0, lt=1)
    """The part of the training tasks that is taken from `replay`, as far as it has as many."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """How certain it has to be that the new model is better on the frozen set, and not worse on the regression set."""
    worse_by: float = Field(default=0.05, gt=0, lt=1)
    """A loss of success on the regression set that still counts as not worse. Proving 0.05 takes 59 unchanged tasks."""
    max_ratings: int = Field(default=50, ge=1)
    """Ratings of one user in a turn, and of one client in a minute; where there are more, none of them counts."""
