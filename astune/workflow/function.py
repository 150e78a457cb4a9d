"""Workflow functions: of a task and its proxy, or with the signature of `agentscope.tuner`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast

from astune.config.schema import AstuneConfig
from astune.schema import Task
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy

LOGGER = logging.getLogger("astune.workflow")
"""Logger passed to functions written for `agentscope.tuner`."""


def function_workflow(function: Callable[..., Any]) -> type[Workflow]:
    """The workflow class that calls `function` once an episode; its name and messages are the function's."""
    if is_tuner_function(function):
        base: type[FunctionWorkflow] = TunerWorkflow
    else:
        base = AsyncFunctionWorkflow if inspect.iscoroutinefunction(function) else FunctionWorkflow
    own = {"function": staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}
    return cast(type[Workflow], type(function.__name__, (base,), own))


def is_tuner_function(function: Callable[..., Any]) -> bool:
    """Return whether it has the signature of a workflow function of `agentscope.tuner`: `(task, model, ...)`."""
    return {"task", "model"} <= inspect.signature(function).parameters.keys()


class FunctionWorkflow(Workflow):
    """Workflow that calls a synchronous function of task and proxy, in its own thread."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, config: AstuneConfig, **params: Any) -> None:
        super().__init__(config)
        self._params = params

    def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | Awaitable[WorkflowOutput | None] | None:
        return type(self).function(task, proxy, **self._params)


class AsyncFunctionWorkflow(FunctionWorkflow):
    """Calls an `async def` of task and proxy, on the event loop."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        return await type(self).function(task, proxy, **self._params)


class TunerWorkflow(FunctionWorkflow):
    """Calls a function written for `agentscope.tuner`: the task as a dictionary, and the proxy as its model.

    What it returns has `reward`, `response` and `metrics`. The response is what a judge reads as `response`, and, where
    it is text or a message of AgentScope, as `final_answer`.
    """

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        function = type(self).function
        returned = await function(task=task_row(task), model=proxy, **tuner_extras(function), **self._params)
        response: Any = getattr(returned, "response", None)
        speaks = hasattr(type(response), "get_text_content")  # asked itself, a ChatResponse raises KeyError
        answer = response.get_text_content() if speaks else response
        if isinstance(answer, str):
            proxy.update_judge_input_dictionary(final_answer=answer)
        if response is not None:
            proxy.update_judge_input_dictionary(response=response)
        return WorkflowOutput(
            reward=getattr(returned, "reward", None), metrics=dict(getattr(returned, "metrics", None) or {})
        )


def task_row(task: Task) -> dict[str, Any]:
    """The task as `agentscope.tuner` hands it over: the row of its data set, with `task_id` and `main_query`."""
    return {"task_id": task.task_id, "main_query": task.main_query} | task.metadata


def tuner_extras(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the optional arguments of `agentscope.tuner`'s functions that this function accepts."""
    extras = {"auxiliary_models": {}, "logger": LOGGER}
    return {name: value for name, value in extras.items() if name in inspect.signature(function).parameters}
