"""Threads for user code that blocks: they end with the process and hold nobody up.

Python cannot stop a thread. A call that outlives its deadline is left to itself as a daemon, which is why these are
no pool: a stuck pool worker would be missed later, and would be waited for when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")


def start_in_thread(function: Callable[[], T], *, name: str) -> Future[T]:
    """Run `function` in a daemon thread of its own, with the caller's context variables."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as cause:  # handed to whoever waits
            with contextlib.suppress(InvalidStateError):
                future.set_exception(cause)
        else:
            with contextlib.suppress(InvalidStateError):
                future.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


async def call_user_code(function: Callable[..., Any], *args: Any, name: str) -> Any:
    """Call what a user wrote, coroutine function or ordinary one; the latter does not hold up the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.wrap_future(start_in_thread(lambda: function(*args), name=name))
    return await result if inspect.isawaitable(result) else result
