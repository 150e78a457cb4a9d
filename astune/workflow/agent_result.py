"""What an agent outside of this process gets of its task, and what it gives back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astune.schema import Task
from astune.workflow.base import WorkflowOutput
from astune.workflow.proxy import AstuneProxy


def given_task(task: Task, proxy: AstuneProxy, fields: Sequence[str]) -> dict[str, Any]:
    """The task as the agent may know it: of its metadata the named fields, since it may hold the reference answer."""
    known = {name: task.metadata[name] for name in fields if name in task.metadata}
    return known | {"task_id": task.task_id, "main_query": task.main_query, "init_messages": proxy.init_messages}


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The agent's result: `final_answer`, `reward`, `is_success` and `metrics`, each where the agent gave it."""

    values: dict[str, Any]

    @classmethod
    def printed(cls, text: str) -> AgentResult:
        """The last line where it is a JSON object; else all of the text is the final answer."""
        lines = text.strip().splitlines()
        with contextlib.suppress(ValueError, RecursionError):
            result = json.loads(lines[-1]) if lines else None
            if isinstance(result, dict):
                return cls(result)
        return cls({"final_answer": text.strip()})

    def conclude(self, proxy: AstuneProxy, *, trusted: bool) -> WorkflowOutput:
        """Register the final answer for the judge; the reward counts where it is `trusted`."""
        if "final_answer" in self.values:
            proxy.update_judge_input_dictionary(final_answer=self.values["final_answer"])
        output = WorkflowOutput(metrics=self.values.get("metrics") or {})
        if trusted and "reward" in self.values:
            output.reward, output.is_success = self.values["reward"], self.values.get("is_success")
        return output
