"""The judge that asks a helper model what an answer is worth."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from astune.config.schema import AstuneConfig
from astune.helper_model import Form, HelperModel, Usage, data, metered
from astune.schema import ConfigError, Reward
from astune.task_judge.judge_base import JudgeBase
from astune.task_judge.judged import Inputs, conversation_of, problem_of, reply_of, task_of

Sees = Literal["answer", "conversation"]


class Grade(Form):
    """Answer format of a helper model; `score` gets the bounds of the scale."""

    reason: str
    score: float


class Scale:
    """The scores that a judge may give, and which of them are a success. Raises ConfigError if it is empty, or
    `success` is not on it."""

    def __init__(self, bounds: Sequence[float], success: float | None) -> None:
        key = "task_judge.params.scale"
        numbers = [each for each in bounds if isinstance(each, int | float) and math.isfinite(each)]
        if len(bounds) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
            raise ConfigError(f"{key} is {bounds!r}", hint="write the lowest and the highest score, as [0, 10]")
        self.lowest, self.highest = float(numbers[0]), float(numbers[1])
        self.success = (self.lowest + 0.7 * (self.highest - self.lowest)) if success is None else success
        if not self.lowest <= self.success <= self.highest:
            raise ConfigError(f"task_judge.params.success is {success!r}", hint=f"{key} is {list(bounds)}")

    def reward(self, scores: Sequence[float], usage: Usage, reasons: Sequence[str]) -> Reward:
        """The mean of several votes between 0 and 1, with what they disagree by as a metric."""
        width = self.highest - self.lowest
        score = fmean(scores)
        return Reward(
            raw_reward=(score - self.lowest) / width,
            is_success=score >= self.success,
            metadata={"score": score, "votes": list(scores), "reasons": list(reasons)},
            metrics=usage.metrics() | {"judge_disagreement": pstdev(scores) / width},
        )

    @property
    def score_type(self) -> Any:
        return Annotated[float, Field(ge=self.lowest, le=self.highest, allow_inf_nan=False)]


class LlmJudge(JudgeBase):
    """The score that a helper model gives to each episode by itself, from 0 to 1.

    Args:
        criteria: what a good answer is, in words.
        scale: the lowest and the highest score that the model may give.
        success: the score from which on an episode is a success; seven tenths of the scale where none is given.
        sees: `answer` shows the model the final answer alone, `conversation` what the agent wrote and read as well.
        votes: answers of the model, whose mean counts; several are sampled with a temperature.

    The model is `helper_model`. It is shown the reference answer where the task's metadata has one in
    `task_judge.reference_field`. One that does not answer is a HelperModelError, never a low score.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        criteria: str,
        scale: Sequence[float] = (0, 10),
        success: float | None = None,
        sees: Sees = "answer",
        votes: int = 1,
    ) -> None:
        super().__init__(config)
        require_settings(votes, sees)
        if not criteria.strip():
            raise ConfigError("task_judge.params.criteria is empty", hint="say what a good answer is, in words")
        self._scale = Scale(scale, success)
        self._sees: Sees = sees
        self._votes = votes
        self._model = HelperModel(config.helper_model)
        self._form: type[Grade] = create_model("Grade", __base__=Grade, score=(self._scale.score_type, ...))
        self._instruction = self._model.prompts.get(
            "judge_one", criteria=criteria, lowest=f"{self._scale.lowest:g}", highest=f"{self._scale.highest:g}"
        )

    async def compute_reward(self, judge_input_dictionary: Inputs) -> Reward:
        question = data(**asked(judge_input_dictionary, self.config), **shown(judge_input_dictionary, self._sees))
        numbers = [None] if self._votes == 1 else range(self._votes)
        with metered() as usage:
            grades = await asyncio.gather(
                *(self._model.ask_json(self._instruction, question, self._form, number=number) for number in numbers)
            )
        return self._scale.reward([grade.score for grade in grades], usage, [grade.reason for grade in grades])


def asked(inputs: Inputs, config: AstuneConfig) -> dict[str, str]:
    """The task as a helper model reads it, with its reference answer where it has one."""
    task = task_of(inputs)
    reference = task.metadata.get(config.task_judge.reference_field)
    return {"task": problem_of(task)} | ({} if reference is None else {"reference": str(reference)})


def shown(inputs: Inputs, sees: Sees) -> dict[str, Any]:
    """Return the part of an episode that a helper model reads."""
    answer: dict[str, Any] = {"answer": reply_of(inputs)}
    return answer if sees == "answer" else answer | {"conversation": conversation_of(inputs)}


def require_settings(votes: int, sees: str) -> None:
    """Raises ConfigError where a helper model cannot be asked so."""
    if votes < 1:
        raise ConfigError(f"task_judge.params.votes is {votes}", hint="ask the model once or more often")
    if sees not in ("answer", "conversation"):
        raise ConfigError(f"task_judge.params.sees is {sees!r}", hint='it is "answer" or "conversation"')
