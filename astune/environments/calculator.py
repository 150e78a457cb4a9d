r"""A calculator that an agent can ask: `<calc>49+15</calc>` gives `<result>64</result>`, and `\boxed{64}` ends it.

One message is one action:

    <calc>49+15</calc>      -> <result>64</result>        the first one, where a message holds several
    <calc>49+</calc>        -> <result>error: a number is missing</result>
    \boxed{64}              -> the end; right if it equals `metadata["answer"]`, whatever else the message holds
    anything else           -> the end, without success

The sparse evaluation is 1 for the right final answer, however it was found, and else 0. The dense one gives 0.5
to an episode that calculated the right number and did not end with it, and 0.1 to one that calculated anything: rare
successes then have frequent forerunners.

A message that is neither a calculation nor an answer ends the episode rather than getting a hint: an untrained agent
strays almost always, and a second chance costs as many tokens as the first, while the group's baseline already
separates better from worse attempts.

Its own tasks are sums of two numbers below 100, with the sum as id: `47 + 16`. Validation tasks end in 3.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep, opening, text_of
from astune.schema import EnvError, Message, Task
from astune.scoring.arithmetic import CalculationError, calculate, format_number
from astune.scoring.math_answer import last_boxed, same_answer

SYSTEM = r"Write <calc>...</calc> to calculate, and read the result. Write the answer as \boxed{...}."
REFERENCE_FIELD = "answer"
FOUND, CALCULATED = 0.5, 0.1
"""The dense evaluation of episodes without the right answer."""

TRAINING_SPLITS, HELD_OUT_SPLITS = ("train",), ("validation", "dev", "test")

_OWN_ID = re.compile(r"\d{2} \+ \d{2}")
_CALC = re.compile(r"<calc>(.*?)</calc>", re.DOTALL)


class Calculator(Environment):
    quick: ClassVar[bool] = True

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self._query = task.main_query
        if REFERENCE_FIELD in task.metadata:
            self._reference = str(task.metadata[REFERENCE_FIELD])
        elif _OWN_ID.fullmatch(task.task_id):
            self._query = f"What is {task.task_id}?"
            self._reference = format_number(calculate(task.task_id))
        else:
            raise EnvError(
                f"task {task.task_id} has no metadata {REFERENCE_FIELD!r}",
                hint="the calculator compares the final answer with it: add it to the task's metadata",
            )
        self._answer: str | None = None
        self._calculations = 0
        self._results: list[str] = []

    def get_init_state(self) -> EnvState:
        return EnvState(list(self.task.init_messages) or opening(SYSTEM, self._query))

    def step(self, action: Message) -> EnvStep:
        text = text_of(action)
        answer = last_boxed(text)
        if answer is not None:
            self._answer = answer
            return EnvStep([], reward=self.evaluate(), is_terminated=True, info={"answer": answer})
        calculation = _CALC.search(text)
        if calculation is None:
            return EnvStep([], reward=0.0, is_terminated=True, info={"stray": True})
        self._calculations += 1
        try:
            result = format_number(calculate(calculation[1]))
            self._results.append(result)
        except CalculationError as error:
            result = f"error: {error}"
        return EnvStep([{"role": "user", "content": f"<result>{result}</result>"}], reward=0.0, is_terminated=False)

    def evaluate(self, sparse: bool = True) -> float:
        if self._answer is not None and same_answer(self._answer, self._reference):
            return 1.0
        if sparse or not self._results:
            return 0.0
        return FOUND if any(same_answer(result, self._reference) for result in self._results) else CALCULATED

    def get_info(self) -> str:
        return f"{self._calculations} calculations, answer {self._answer}, reference {self._reference}"

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        if split not in TRAINING_SPLITS + HELD_OUT_SPLITS:
            raise EnvError(
                f"the calculator has no split {split!r}",
                hint=f"use {' or '.join(TRAINING_SPLITS)} to train, {' or '.join(HELD_OUT_SPLITS)} to measure",
            )
        sums = [(a, b) for a in range(10, 100, 3) for b in range(10, 100, 7)]
        return [f"{a} + {b}" for a, b in sums if ((a + b) % 10 == 3) == (split in HELD_OUT_SPLITS)]
