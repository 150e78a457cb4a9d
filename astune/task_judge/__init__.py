"""Judges: rewards of episodes. A judge derives from `JudgeBase`."""

from astune.task_judge.env_service_as_judge import DenseEnvServiceJudge, EnvServiceJudge
from astune.task_judge.group_judge import GroupJudge
from astune.task_judge.judge_base import GroupJudgeBase, JudgeBase
from astune.task_judge.llm_judge import LlmJudge
from astune.task_judge.loading import load_judge
from astune.task_judge.math_answer_as_judge import MathAnswerAndLlmAsJudge, MathAnswerAsJudge

__all__ = [
    "DenseEnvServiceJudge",
    "EnvServiceJudge",
    "GroupJudge",
    "GroupJudgeBase",
    "JudgeBase",
    "LlmJudge",
    "MathAnswerAndLlmAsJudge",
    "MathAnswerAsJudge",
    "load_judge",
]
