r"""The judges that compare a final answer with the task's reference answer, as mathematics.

`\boxed{\frac{1}{2}}` is right where the reference is `0.5`; see `astune.scoring.math_answer` for what counts as
the answer of a text and as equal.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from astune.config.schema import AstuneConfig
from astune.helper_model import HelperModel, data, metered
from astune.schema import JudgeError, Reward, Task
from astune.scoring.math_answer import after_marker, is_number, same_answer, stated_answer
from astune.task_judge.judge_base import JudgeBase
from astune.task_judge.judged import problem_of, reply_of

_log = logging.getLogger(__name__)

_SECTION = "task_judge.params"
_MARKS = re.compile(r"\\boxed|\\fbox|####")
"""Phrases that announce an answer; without anything after them, it was cut off or omitted."""
_LONGEST_REPLY = 8_000
"""Characters of a reply's end in which a judge model looks for the answer."""
_LONGEST_ANSWER = 1_000
_AS_HELPER_MODEL: Any = ...
"""Default of a setting that may be null, which is another value than that of `helper_model`."""


class MathAnswerAsJudge(JudgeBase):
    """1 for the right answer, 0 for another or none.

    The reply is `final_answer` where the workflow registered one, else the last assistant message. The reference is
    the metadata field `task_judge.reference_field`; of a text with `####`, as in GSM8K, it is what follows that.
    """

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        task: Task = judge_input_dictionary["task_core_arg"].task
        reference = _reference(task, self.config.task_judge.reference_field)
        answer = stated_answer(reply_of(judge_input_dictionary))
        return _rewarded(answer is not None and same_answer(answer, reference), answer, reference)


class MathAnswerAndLlmAsJudge(JudgeBase):
    r"""`MathAnswerAsJudge`, and a judge model where its rules cannot decide.

        reply                         reference
        so \boxed{64}                 64             right, by the rules
        so \boxed{65}                 64             wrong, by the rules: no model is asked about two numbers
        so \boxed{6                   64             wrong, by the rules: it was cut off
        sixty-four apples it is       64             the model copies the answer, and the rules compare if they can
        so \boxed{2x}                 x + x          the model says whether these are the same

    The model sees the reference only where it compares, and then not the reply: it cannot find what is not there.
    Its endpoint is `task_judge.params.base_url`, or `helper_model`. Without either a warning says so, and what the
    rules cannot decide counts as wrong, as `MathAnswerAsJudge` has it. A model that does not answer is a
    HelperModelError. Who decided is in the reward's metadata.
    """

    def __init__(
        self,
        config: AstuneConfig,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        model: str | None = None,
        max_concurrency: int | None = None,
        budget_tokens: int | None = _AS_HELPER_MODEL,
        timeout_s: float | None = None,
        temperature: float | None = _AS_HELPER_MODEL,
    ) -> None:
        super().__init__(config)
        self._model: HelperModel | None = None
        if not (base_url or config.helper_model.base_url):
            _log.warning(
                "MathAnswerAndLlmAsJudge has no judge model: answers that its rules cannot decide count as wrong; "
                "set %s.base_url, model and api_key_env, or helper_model, to have a model decide them",
                _SECTION,
            )
            return
        own: dict[str, Any] = {
            "base_url": base_url,
            "api_key_env": api_key_env,
            "model": model,
            "max_concurrency": max_concurrency,
            "timeout_s": timeout_s,
        }
        given = {name: value for name, value in own.items() if value is not None}
        nullable = {"budget_tokens": budget_tokens, "temperature": temperature}
        given |= {name: value for name, value in nullable.items() if value is not _AS_HELPER_MODEL}
        section = _SECTION if base_url else "helper_model"
        self._model = HelperModel.overridden(config.helper_model, given, section=section)

    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Reward:
        task: Task = judge_input_dictionary["task_core_arg"].task
        reference = _reference(task, self.config.task_judge.reference_field)
        reply = reply_of(judge_input_dictionary)
        answer = stated_answer(reply)
        right = _by_rules(answer, reply, reference)
        if right is not None:
            return _rewarded(right, answer, reference, by="rules")
        if self._model is None:
            return _rewarded(False, answer, reference, by="nobody")
        with metered() as usage:
            if answer is None:
                answer = await _found(self._model, reply)
                right = False if answer is None else _by_rules(answer, reply, reference)
            if right is None:
                right = await _are_same(self._model, task, answer or "", reference)
        decided = _rewarded(right, answer, reference, by="judge model")
        return decided.model_copy(update={"metrics": usage.metrics()})


def _by_rules(answer: str | None, reply: str, reference: str) -> bool | None:
    """Return whether the answer is right; None where the rules cannot decide."""
    if answer is None:
        return False if not reply.strip() or _MARKS.search(reply) else None
    if same_answer(answer, reference):
        return True
    return False if not answer or (is_number(answer) and is_number(reference)) else None


async def _found(model: HelperModel, reply: str) -> str | None:
    """The answer that a reply commits to; None if there is none."""
    answer_text = await model.ask(model.prompts.get("math_find"), data(solution=reply[-_LONGEST_REPLY:]))
    return None if answer_text.strip(" .").upper() == "NONE" else stated_answer(answer_text) or answer_text


async def _are_same(model: HelperModel, task: Task, answer: str, reference: str) -> bool:
    """Raises JudgeError if the model says neither yes nor no."""
    texts = data(problem=problem_of(task), reference=reference, answer=answer[:_LONGEST_ANSWER])
    answer_text = await model.ask(model.prompts.get("math_compare"), texts)
    word = re.match(r"\W*(yes|no)\b", answer_text, re.IGNORECASE)
    if word is None:
        raise JudgeError(
            f"the judge model was asked whether {answer!r} is {reference!r}, and answered {answer_text[:200]!r}",
            hint=f"set {_SECTION}.model to one that answers with yes or no",
        )
    return word[1].lower() == "yes"


def _rewarded(
    right: bool, answer: str | None, reference: str, *, by: Literal["rules", "judge model", "nobody", ""] = ""
) -> Reward:
    metadata = {"answer": answer, "reference_answer": reference} | ({"decided_by": by} if by else {})
    return Reward(raw_reward=float(right), is_success=right, metadata=metadata)


def _reference(task: Task, field: str) -> str:
    fix = "set task_judge.reference_field to the field that holds the reference answer"
    if field not in task.metadata:
        there = ", ".join(sorted(task.metadata)) or "nothing"
        raise JudgeError(f"the metadata of task {task.task_id} has no {field!r}, it has {there}", hint=fix)
    value = task.metadata[field]
    reference = after_marker(str(value)) if isinstance(value, str | int | float) else ""
    if not reference or isinstance(value, bool):
        raise JudgeError(f"field {field!r} of task {task.task_id} holds no answer: {value!r}", hint=fix)
    return reference
