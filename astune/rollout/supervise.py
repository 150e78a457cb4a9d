"""Running a coroutine of others until it ends or reaches a deadline, with certainty that it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from astune.schema import DeadlineExceeded, WorkflowError

T = TypeVar("T")

_CANCELLATIONS = 20
_BETWEEN_CANCELLATIONS_S = 0.5


async def supervise(
    work: Coroutine[Any, Any, T], *, timeout_s: float, deadline: Callable[[], str], stop: Callable[[], None], hint: str
) -> T:
    """Return the result of `work`, which runs as a separate task.

    Agent frameworks swallow cancellations (AgentScope treats one as an interruption by its user and continues), so the
    task is stopped by `stop()`, which disables what it uses, and by cancelling it until it ends.

    Args:
        deadline: returns the name of the wait, for the error.

    Raises:
        DeadlineExceeded: `timeout_s` seconds were not enough.
        WorkflowError: the work was cancelled from within.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(f"{deadline()} took longer than {timeout_s:g} s", hint=hint)
        if task.cancelled():
            raise WorkflowError("the workflow cancelled itself", hint="let CancelledError pass in your agent's code")
        return task.result()
    finally:
        if not task.done():
            stop()
            await _end(task)
        elif not task.cancelled():
            task.exception()  # seen, where the waiting was cancelled as it ended


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel the task until it ends; one that resists for ten seconds is abandoned, disconnected by `stop`."""
    for _ in range(_CANCELLATIONS):
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_BETWEEN_CANCELLATIONS_S)
        if done:
            if not task.cancelled():
                task.exception()  # seen, so that asyncio does not report it
            return
