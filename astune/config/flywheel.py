"""Settings of the flywheel, which turns users' feedback into a model and promotes it only if it is proven better."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class FlywheelConfig(StrictModel):
    """A cycle from feedback to a decision: `astune flywheel`. The store is `task_reader.feedback_tracing.path`."""

    folder: str = "flywheel"
    """Folder of the cycles, promoted models and their history; relative to the working directory."""
    imports: list[str] = Field(default_factory=list)
    """Traces and ratings to import at the start of a turn, as `astune feedback import` reads them."""
    learn_by: Literal["sft", "dpo", "reinforcement"] = "sft"
    """`sft` trains on accepted and corrected answers, `dpo` on preferences between these and rejected ones,
    `reinforcement` on the users' queries with the experiment's algorithm, workflow and judge."""
    held_out: str = ""
    """Validation set on which the new model must be better: a JSONL file of tasks. It stays as it is between turns."""
    regression: str = ""
    """A JSONL file of tasks that the new model must not be worse on; empty measures none."""
    replay: str = ""
    """A JSONL file of original tasks; each turn trains on some of them to prevent forgetting."""
    replay_share: float = Field(default=0.3, ge=0, lt=1)
    """Fraction of the training tasks taken from `replay`, as far as it has enough."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence required that the new model is better on the validation set, and not worse on the regression set."""
    worse_by: float = Field(default=0.05, gt=0, lt=1)
    """A loss of success on the regression set that still counts as not worse. Proving 0.05 takes 59 unchanged tasks."""
    expand: int = Field(default=0, ge=0)
    """Tasks that the helper model creates in each turn from failures that users corrected, as `astune data expand`
    does; 0 creates none. Requires `learn_by: reinforcement`."""
    rubrics: bool = False
    """Learn rubrics from the rated answers of each turn, as `astune rubrics learn` does, and train with them in place
    of the judge's. Requires `learn_by: reinforcement` and `task_judge.judge_protocol: rubrics`."""
    max_ratings: int = Field(default=50, ge=1)
    """Maximum ratings of one user per turn, and of one client per minute; above it, none of them counts."""
