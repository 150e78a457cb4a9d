"""Input and result of an agent outside of this process."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astune.schema import Task, WorkflowError, shown_value
from astune.schema.plain_json import encoded
from astune.serving import read_json
from astune.workflow.base import WorkflowOutput
from astune.workflow.proxy import AstuneProxy

_FIELDS = "change or leave out the field of its metadata that the workflow names"
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Others, such as U+2028, JSON may hold in a text as they are."""
RESULT_FIELDS = ("final_answer", "reward", "is_success", "metrics")
_SHOWN_FAILURES = 3
_failures = itertools.count()
_odd_metrics = itertools.count()
_log = logging.getLogger(__name__)


def given_task(task: Task, proxy: AstuneProxy, fields: Sequence[str]) -> dict[str, Any]:
    """The task as the agent may know it, as plain JSON: of its metadata the named fields, since it may hold the
    reference answer.

    Raises:
        WorkflowError: a field is not valid JSON, such as NaN.
    """
    known = {name: task.metadata[name] for name in fields if name in task.metadata}
    given = known | {"task_id": task.task_id, "main_query": task.main_query, "init_messages": proxy.init_messages}
    try:
        return json.loads(encoded(given))
    except (TypeError, ValueError) as cause:
        raise WorkflowError(f"task {task.task_id} cannot be given to its agent: {cause}", hint=_FIELDS) from cause


def warn_of_failure(failure: str, output: str) -> None:
    """Report that an agent failed after it called the model: always in the debug log, the first times as a warning."""
    _log.log(
        _level(_failures),
        "%s: %s. It had asked the model, so this is judged and no error (metric agent_failed)",
        failure,
        output,
    )


def _level(count: Iterator[int]) -> int:
    return logging.WARNING if next(count) < _SHOWN_FAILURES else logging.DEBUG


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The agent's result: `final_answer`, `reward`, `is_success` and `metrics`, each where the agent gave it."""

    values: dict[str, Any]

    @classmethod
    def printed(cls, text: str) -> AgentResult:
        """Parse the last line if it is a JSON object with one of the result's fields. Without a final answer in it, the
        whole text is one: an agent that prints what the model wrote may end with any object."""
        return cls({"final_answer": text.strip()} | (_result_in(_LINE_END.split(text.strip())[-1]) or {}))

    @classmethod
    def answered(cls, text: str) -> AgentResult:
        """Parse a response that is such an object, on however many lines; else as `printed`."""
        result = _result_in(text)
        return cls.printed(text) if result is None else cls({"final_answer": text.strip()} | result)

    def conclude(self, proxy: AstuneProxy, *, trusted: bool, failed: bool) -> WorkflowOutput:
        """Register the final answer for the judge; use the reward if it is `trusted`, or 0 if the agent `failed`."""
        if "final_answer" in self.values:
            proxy.update_judge_input_dictionary(final_answer=self.values["final_answer"])
        output = WorkflowOutput(metrics={**_numbers(self.values.get("metrics")), "agent_failed": float(failed)})
        if trusted and failed:
            output.reward, output.is_success = 0.0, False
        elif trusted and "reward" in self.values:
            output.reward, output.is_success = self.values["reward"], self.values.get("is_success")
        return output


def _numbers(metrics: Any) -> dict[str, float]:
    """The metrics that are finite numbers. Others are logged and ignored: a model may have written them."""
    named = metrics if isinstance(metrics, dict) else {}
    numbers = {name: number for name, value in named.items() if math.isfinite(number := _number(value))}
    if metrics and (named is not metrics or len(numbers) < len(named)):
        _log.log(_level(_odd_metrics), "metrics are named numbers; ignored others of %s", shown_value(metrics))
    return numbers


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _result_in(text: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(text)
        if isinstance(result, dict) and not result.keys().isdisjoint(RESULT_FIELDS):
            if "final_answer" in result:
                result["final_answer"] = _as_json(result["final_answer"])
            return result
    return None


def _as_json(answer: Any) -> Any:
    """Return the final answer as every backend hands it to the judge; as text if it is not strict JSON, since a model
    may have written it.
    """
    try:
        return read_json(encoded(answer))
    except (ValueError, RecursionError):
        return json.dumps(answer)
