"""A judge that is a function of `task` and `response`, as in `agentscope.tuner`; an ordinary one runs in a thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, cast

from astune.config.schema import AstuneConfig
from astune.schema import JudgeError, Reward, call_user_code, shown_value
from astune.schema.reward import FULL_SCORE
from astune.task_judge.judge_base import JudgeBase
from astune.workflow.function import task_row, tuner_extras


def function_judge(function: Callable[..., Any]) -> type[FunctionJudge]:
    """The judge class that calls `function` for each episode; errors and metrics have the function's name."""
    own = {"function": staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}
    return cast(type[FunctionJudge], type(function.__name__, (FunctionJudge,), own))


class FunctionJudge(JudgeBase):
    """Hands the function the task as a dictionary and the workflow's response (its final answer without one).

    What the function returns has `reward` and `metrics`, or is the reward; a full score of 1 counts as success.
    """

    function: ClassVar[Callable[..., Any]]

    def __init__(self, config: AstuneConfig, **params: Any) -> None:
        super().__init__(config)
        self._params = params

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        given, name = judge_input_dictionary, type(self).__name__
        task, response = given["task_core_arg"].task, given.get("response", given.get("final_answer"))
        arguments = {"task": task_row(task), "response": response} | tuner_extras(type(self).function) | self._params
        judging = functools.partial(type(self).function, **arguments)
        output = await call_user_code(judging, name=f"astune-judge {name} on task {task.task_id}")
        reward = getattr(output, "reward", output)
        if not hasattr(type(reward), "__float__"):
            raise JudgeError(
                f"judge {name} on task {task.task_id} returned {shown_value(output)}",
                hint="return the reward as a number, or an object with reward and metrics",
            )
        metrics = dict(getattr(output, "metrics", None) or {})
        return Reward(raw_reward=float(reward), is_success=float(reward) >= FULL_SCORE, metrics=metrics)
