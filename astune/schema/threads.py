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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_stepped: ContextVar[bool] = ContextVar("astune_stepped", default=False)


@contextlib.contextmanager
def stepped() -> Iterator[None]:
    """Within, user code that blocks runs in its caller's thread, where a debugger steps from one into the other."""
    token = _stepped.set(True)
    try:
        yield
    finally:
        _stepped.reset(token)


def is_stepped() -> bool:
    return _stepped.get()


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


async def call_user_code(function: Callable[..., Any], *args: Any, name: str, calls_back: bool = False) -> Any:
    """Call what a user wrote, coroutine function or ordinary one; the latter does not hold up the event loop.

    Args:
        calls_back: it waits for the event loop, as an ordinary function that calls the model does; it then needs a
            thread of its own even where everything else is `stepped`.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    if is_stepped() and not calls_back:
        result = function(*args)
        return await result if inspect.isawaitable(result) else result
    result = await asyncio.wrap_future(start_in_thread(lambda: function(*args), name=name))
    return await result if inspect.isawaitable(result) else result
