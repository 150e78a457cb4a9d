"""A calculator's agent in one message: it writes the calculation, and reads no result."""

from __future__ import annotations

import re
from typing import Any

from astune import AstuneConfig, AstuneProxy, Task, Workflow, WorkflowOutput
from astune.scoring.arithmetic import CalculationError, calculate, format_number

SYSTEM = "Write the calculation that answers the question as <calc>...</calc>."
BEFORE: list[dict[str, Any]] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Mia has 58 pears and gets 23 more. How many pears does Mia have?"},
    {"role": "assistant", "content": "<calc>58+23</calc>"},
    {"role": "user", "content": "Noah had 82 pears and ate 45. How many are left?"},
    {"role": "assistant", "content": "<calc>82-45</calc>"},
]
TRIED = 0.1
"""The reward of a calculation that is not the right one."""


class Solver(Workflow):
    """Reference answers are numbers, which users wrote, or calculations that they accepted.

    Args:
        system_prompt: what a search for prompts changes.
    """

    def __init__(self, config: AstuneConfig, *, system_prompt: str = SYSTEM) -> None:
        super().__init__(config)
        self.system_prompt = system_prompt

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        messages = [{"role": "system", "content": self.system_prompt}, *proxy.init_messages[1:]]
        answer = (await proxy.achat(messages))["content"]
        value = value_of(answer)
        right = value is not None and value == value_of(task.metadata["answer"])
        tried = value is not None and "<calc>" in answer
        return WorkflowOutput(reward=1.0 if right else TRIED * tried, is_success=right)


def value_of(text: str) -> str | None:
    """The value of the first calculation of a text, or the number that it is; None where it is neither."""
    found = re.search(r"<calc>(.*?)</calc>", text)
    try:
        return format_number(calculate(found[1] if found else text.strip()))
    except CalculationError:
        return None
