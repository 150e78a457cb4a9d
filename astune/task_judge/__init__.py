"""Judges: what an episode was worth. A judge is written against `JudgeBase`."""

from astune.task_judge.env_service_as_judge import DenseEnvServiceJudge, EnvServiceJudge
from astune.task_judge.judge_base import JudgeBase
from astune.task_judge.loading import load_judge
from astune.task_judge.math_answer_as_judge import MathAnswerAndLlmAsJudge, MathAnswerAsJudge

__all__ = [
    "DenseEnvServiceJudge",
    "EnvServiceJudge",
    "JudgeBase",
    "MathAnswerAndLlmAsJudge",
    "MathAnswerAsJudge",
    "load_judge",
]
