"""How an episode is rewarded."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from astune.config.strict import StrictModel


class WeightedJudgeConfig(StrictModel):
    """One of several judges."""

    shorthand: ClassVar[str] = "judge"

    judge: str
    """As `task_judge.judge_protocol`."""
    weight: float = 1.0
    """Its reward is multiplied by this."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its class or function."""


class TaskJudgeConfig(StrictModel):
    """How an episode is rewarded."""

    judge_protocol: str | list[WeightedJudgeConfig] = ""
    """Your reward: a built-in name (docs/en/judge.md), `module->Class` or `path/file.py->Class`. Of a list the rewards
    are added by their weights, and the first says what is a success. Empty or null where the workflow returns the
    reward itself."""
    reference_field: str = "answer"
    """The metadata field that holds the reference answer, for judges that compare with one."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the judge's class or function; docs/en/judge.md has those of `MathAnswerAndLlmAsJudge`."""

    @field_validator("judge_protocol", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value
