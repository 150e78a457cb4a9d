r"""The judge that compares a final answer with the task's reference answer, as mathematics.

`\boxed{\frac{1}{2}}` is right where the reference is `0.5`; see `astune.env_service.math_answer` for what counts as
the answer of a text and as equal.
"""

from __future__ import annotations

from typing import Any

from astune.env_service.base import text_of
from astune.env_service.math_answer import after_marker, same_answer, stated_answer
from astune.schema import JudgeError, Reward, Task
from astune.task_judge.judge_base import JudgeBase


class MathAnswerAsJudge(JudgeBase):
    """1 for the right answer, 0 for another or none.

    The reply is `final_answer` where the workflow registered one, else the last assistant message. The reference is
    the metadata field `task_judge.reference_field`; of a text with `####`, as in GSM8K, it is what follows that.
    """

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        task: Task = judge_input_dictionary["task_core_arg"].task
        reference = self._reference(task)
        answer = stated_answer(_reply(judge_input_dictionary, task))
        right = answer is not None and same_answer(answer, reference)
        return Reward(
            raw_reward=float(right), is_success=right, metadata={"answer": answer, "reference_answer": reference}
        )

    def _reference(self, task: Task) -> str:
        field = self.config.task_judge.reference_field
        fix = "set task_judge.reference_field to the field that holds the reference answer"
        if field not in task.metadata:
            there = ", ".join(sorted(task.metadata)) or "nothing"
            raise JudgeError(f"the metadata of task {task.task_id} has no {field!r}, it has {there}", hint=fix)
        value = task.metadata[field]
        reference = after_marker(str(value)) if isinstance(value, str | int | float) else ""
        if not reference or isinstance(value, bool):
            raise JudgeError(f"field {field!r} of task {task.task_id} holds no answer: {value!r}", hint=fix)
        return reference


def _reply(inputs: dict[str, Any], task: Task) -> str:
    final = inputs.get("final_answer")
    if final is not None:
        return final if isinstance(final, str) else text_of({"content": final})
    for steps in reversed(inputs.get("grouped_steps") or []):
        for message in reversed(steps):
            if message.get("role") == "assistant":
                return text_of(message)
    raise JudgeError(
        f"task {task.task_id} ended without an assistant message",
        hint="register the answer: astune_proxy.update_judge_input_dictionary(final_answer=...)",
    )
