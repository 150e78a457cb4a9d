"""The judge that runs the checker which was made and tested with a task."""

from __future__ import annotations

from typing import Any

from astune.config.schema import AstuneConfig
from astune.data_generator.checkers import judged
from astune.data_generator.draft import CHECKER
from astune.schema import Reward
from astune.scoring.math_answer import stated_answer
from astune.task_judge.judge_base import JudgeBase
from astune.task_judge.judged import reply_of, task_of
from astune.task_judge.math_answer_as_judge import MathAnswerAsJudge


class CheckerJudge(JudgeBase):
    """1 where `metadata.checker`, Python with a function `check(answer)`, accepts the answer; else 0.

    The answer is what stands in a box or after "the answer is", where a reply has that, and else the whole reply. The
    checker runs in the sandbox; one that takes too long for an answer refuses it. A task without a checker, such as an
    example that tasks were made from, is judged by its reference answer, as `MathAnswerAsJudge` does.
    """

    def __init__(self, config: AstuneConfig) -> None:
        super().__init__(config)
        self._by_reference = MathAnswerAsJudge(config)

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        task = task_of(judge_input_dictionary)
        source = task.metadata.get(CHECKER)
        if not isinstance(source, str) or not source.strip():
            return self._by_reference.compute_reward(judge_input_dictionary)
        reply = reply_of(judge_input_dictionary)
        answer = stated_answer(reply) or reply
        [right] = await judged(source, [answer], self.config.sandbox) or [False]
        return Reward(raw_reward=float(right), is_success=right, metadata={"answer": answer})
