"""The judge that grades by rubrics, learned or written."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.helper_model import HelperModel, metered
from astune.rubrics.grading import Grader
from astune.rubrics.rubric import Rubrics
from astune.schema import ConfigError, Reward
from astune.task_judge.judge_base import GroupJudgeBase
from astune.task_judge.judged import Inputs, problem_of, reply_of, task_of

_ROUNDING = 1e-9
"""A weighted mean of marks that is exactly the limit may be computed a little below it."""


class RubricsJudge(GroupJudgeBase):
    """The weighted part of its rubrics that an answer meets, from 0 to 1, as a helper model sees it.

    Listwise rubrics are marked for the answers of a group together, pointwise ones for each answer by itself.

    Args:
        file: the rubrics, as `astune rubrics learn` writes them; a relative path starts from the working directory.
        success: the reward from which on an episode is a success.
    """

    def __init__(self, config: AstuneConfig, *, file: str, success: float = 0.7) -> None:
        super().__init__(config)
        if not 0 <= success <= 1:
            raise ConfigError(f"task_judge.params.success is {success!r}", hint="rewards are between 0 and 1")
        self._rubrics = Rubrics.load(Path(file).expanduser())
        self._success = success
        settings = config.helper_model.model_copy(update={"language": self._rubrics.language})
        self._grader = Grader(HelperModel(settings))

    async def compute_rewards(self, judge_input_dictionaries: list[Inputs]) -> list[Reward]:
        task = task_of(judge_input_dictionaries[0])
        reference = task.metadata.get(self.config.task_judge.reference_field)
        texts = [rubric.text for rubric in self._rubrics.rubrics]
        answers = [reply_of(each) for each in judge_input_dictionaries]
        together = [answers] if self._rubrics.grader_mode == "listwise" else [[answer] for answer in answers]
        with metered() as usage:
            marks = [
                mark
                for part in together
                for mark in await self._grader.marks(
                    problem_of(task), part, texts, reference=None if reference is None else str(reference)
                )
            ]
        share = usage.shared_by(len(answers)).metrics()
        return [self._reward(own, share) for own in marks]

    def _reward(self, marks: list[float], metrics: dict[str, float]) -> Reward:
        reward = weighted(self._rubrics, marks)
        met = {rubric.text: mark for rubric, mark in zip(self._rubrics.rubrics, marks, strict=True)}
        return Reward(
            raw_reward=reward,
            is_success=reward >= self._success - _ROUNDING,
            metadata={"rubrics": met},
            metrics=metrics,
        )


def weighted(rubrics: Rubrics, marks: list[float]) -> float:
    """The weighted mean of marks, from 0 to 1."""
    weights = [rubric.weight for rubric in rubrics.rubrics]
    return sum(weight * mark for weight, mark in zip(weights, marks, strict=True)) / sum(weights)
