"""Running somebody else's coroutine to its end or to a deadline, and being sure that it has ended."""

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
    """The result of `work`, which runs as a task of its own.

    Agent frameworks swallow cancellations (AgentScope takes one for an interruption by its user and talks on), so
    the task is stopped by `stop()`, which makes what it uses refuse, and by cancelling it until it ends.

    Args:
        deadline: names the wait, for the error; called when it is over.

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
    """Cancel until it is over; one that resists for ten seconds is given up, cut off from everything by `stop`."""
    for _ in range(_CANCELLATIONS):
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_BETWEEN_CANCELLATIONS_S)
        if done:
            if not task.cancelled():
                task.exception()  # seen, so that asyncio does not report it
            return
