"""Settings of the judges that reward episodes."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from astune.config.strict import StrictModel


class WeightedJudgeConfig(StrictModel):
    """A judge of a list of judges."""

    shorthand: ClassVar[str] = "judge"

    judge: str
    """Same as `task_judge.judge_protocol`."""
    weight: float = 1.0
    """Factor on the judge's reward."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the judge's class or function."""
    calibration: str = ""
    """File of `astune check judge --calibrate` that maps the judge's reward to people's labels."""


class TaskJudgeConfig(StrictModel):
    """Reward of an episode."""

    judge_protocol: str | list[WeightedJudgeConfig] = ""
    """Your reward: a built-in name (docs/en/judge.md), `module->Class` or `path/file.py->Class`. With a list, the
    rewards are summed by weight, and the first judge decides on success. Empty or null if the workflow returns the
    reward itself."""
    reference_field: str = "answer"
    """Metadata field with the reference answer, for judges that compare with one."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the judge's class or function; docs/en/judge.md lists those of
    `MathAnswerAndLlmAsJudge`."""

    @field_validator("judge_protocol", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value
