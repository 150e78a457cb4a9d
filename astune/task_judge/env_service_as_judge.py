"""The judges that ask the episode's environment, which knows best."""

from __future__ import annotations

from typing import Any, ClassVar

from astune.env_service.built_in import NO_ENV
from astune.schema import JudgeError, Reward
from astune.schema.reward import FULL_SCORE
from astune.task_judge.judge_base import JudgeBase


class EnvServiceJudge(JudgeBase):
    """The environment's sparse evaluation, 0 to 1; success is a full score."""

    sparse: ClassVar[bool] = True

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        environment = judge_input_dictionary.get("env")
        if environment is None and judge_input_dictionary["task_core_arg"].task.env_type != NO_ENV:
            raise JudgeError(
                "EnvServiceJudge asks the environment, which is gone when its episode is over",
                hint="the recorded rewards are kept; run the episodes again to judge them with another judge",
            )
        if environment is None:
            raise JudgeError(
                "EnvServiceJudge asks the environment, and this task has none",
                hint="give the task an env_type, or choose another task_judge.judge_protocol",
            )
        score = await environment.evaluate(sparse=self.sparse)
        return Reward(raw_reward=score, is_success=score >= FULL_SCORE)


class DenseEnvServiceJudge(EnvServiceJudge):
    """The environment's dense evaluation: parts of a task count as well. Success is still a full score."""

    sparse = False
