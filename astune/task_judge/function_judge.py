"""A judge that is a function written for `agentscope.tuner`: `async def judge(task, response, ...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Reward
from astune.schema.reward import FULL_SCORE
from astune.task_judge.judge_base import JudgeBase
from astune.workflow.function import task_row, tuner_extras


class FunctionJudge(JudgeBase):
    """Hands the function the task as a dictionary and the workflow's response (its final answer without one).

    What the function returns has `reward` and `metrics`, or is the reward; a full score of 1 counts as success.
    """

    def __init__(self, config: AstuneConfig, function: Callable[..., Any], params: dict[str, Any]) -> None:
        super().__init__(config)
        self._function = function
        self._params = params

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        given = judge_input_dictionary
        response = given.get("response", given.get("final_answer"))
        row = task_row(given["task_core_arg"].task)
        output = self._function(task=row, response=response, **tuner_extras(self._function), **self._params)
        output = await output if inspect.isawaitable(output) else output
        reward = float(getattr(output, "reward", output))
        metrics = dict(getattr(output, "metrics", None) or {})
        return Reward(raw_reward=reward, is_success=reward >= FULL_SCORE, metrics=metrics)
