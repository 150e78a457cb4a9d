"""Learning rubrics, and comparing their agreement with labels with that of a plain judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.app.judge_check import labelled_task, rewards_of
from astune.config import AstuneConfig
from astune.helper_model import HelperModel, Usage, metered
from astune.rubrics import Agreement, Example, RubricLearner, Rubrics, agreement, comparable
from astune.rubrics.learning import OnProgress
from astune.task_judge import GroupJudge, JudgeBase, LlmJudge
from astune.task_judge.rubrics_judge import RubricsJudge

PLAIN_CRITERIA = {"en": "It is a good answer to the task.", "zh": "它是对任务的一个好回答。"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A judge's agreement with labels, and what asking it took."""

    judge: str
    agreement: Agreement
    usage: Usage


async def learn(
    config: AstuneConfig, examples: Sequence[Example], description: str, on_progress: OnProgress
) -> tuple[Rubrics, Usage]:
    """Learn rubrics from labelled answers, or from the description if there are none. Raises AstuneError if the helper
    model does not answer, or nothing can be learned."""
    language = config.rubrics.language or config.helper_model.language
    model = HelperModel(config.helper_model.model_copy(update={"language": language}))
    learner = RubricLearner(model, config.rubrics, language, on_progress)
    if examples:
        return await learner.from_labels(examples, description), model.used
    return await learner.from_description(description), model.used


async def measure(
    config: AstuneConfig, file: str, examples: Sequence[Example], on_progress: OnProgress
) -> list[Measured]:
    """Agreement of the rubrics in `file` with the labels, and of a judge that has no rubrics."""
    rubrics = RubricsJudge(config, file=file)
    language = config.rubrics.language or config.helper_model.language
    plain: JudgeBase
    if config.rubrics.grader_mode == "listwise":
        plain = GroupJudge(config, sees="answer", criteria=PLAIN_CRITERIA[language])
    else:
        plain = LlmJudge(config, criteria=PLAIN_CRITERIA[language])
    judges: dict[str, JudgeBase] = {"plain judge": plain, "rubrics": rubrics}
    return [await _measured(name, judge, examples, config, on_progress) for name, judge in judges.items()]


async def _measured(
    name: str,
    judge: JudgeBase,
    examples: Sequence[Example],
    config: AstuneConfig,
    on_progress: OnProgress,
) -> Measured:
    graded: list[list[tuple[float, float]]] = []
    with metered() as usage:
        for number, example in enumerate(examples):
            on_progress(name, number, len(examples))
            task = labelled_task("labelled", example, config.task_judge.reference_field)
            grades = await rewards_of(judge, task, example.answers)
            graded.append(list(zip(example.labels, grades, strict=True)))
    on_progress(name, len(examples), len(examples))
    return Measured(name, agreement(comparable(graded)), usage)
