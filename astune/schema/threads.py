"""Threads for blocking user code: daemons that end with the process.

Python cannot stop a thread. A call that exceeds its deadline is abandoned as a daemon. A pool would lose the stuck
worker for later calls, and the interpreter would wait for it at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from typing import Any, TypeVar

from astune.schema.user_place import described

T = TypeVar("T")

_stepped: ContextVar[bool] = ContextVar("astune_stepped", default=False)


@contextlib.contextmanager
def stepped() -> Iterator[None]:
    """Context in which blocking user code runs in its caller's thread, so that a debugger can step from one into the
    other."""
    token = _stepped.set(True)
    try:
        yield
    finally:
        _stepped.reset(token)


def is_stepped() -> bool:
    return _stepped.get()


class UserCodeExit(Exception):
    """User code raised an exception that ends a program, a coroutine or a generator, such as SystemExit or
    StopIteration."""


@contextlib.contextmanager
def contained(*, in_thread: bool = False) -> Iterator[None]:
    """Context that turns whatever user code raises into an ordinary exception; outside of threads, cancellation and
    Ctrl-C pass. Raises UserCodeExit if it raised another BaseException, or one that a future cannot hold."""
    try:
        yield
    except BaseException as cause:
        passes = isinstance(cause, KeyboardInterrupt | asyncio.CancelledError) and not in_thread
        if passes or _is_ordinary(cause):
            raise
        raise UserCodeExit(described(cause)).with_traceback(cause.__traceback__) from cause


def _is_ordinary(cause: BaseException) -> bool:
    return isinstance(cause, Exception) and not isinstance(cause, StopIteration | StopAsyncIteration)


def start_in_thread(function: Callable[[], T], *, name: str) -> Future[T]:
    """Run `function` in a new daemon thread, with the caller's context variables."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as cause:  # re-raised in the waiting caller
            with contextlib.suppress(InvalidStateError):
                future.set_exception(cause)
        else:
            with contextlib.suppress(InvalidStateError):
                future.set_result(result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def is_on_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_alone(work: Coroutine[Any, Any, T], *, name: str) -> T:
    """Return the result of `work` for a synchronous caller, which may itself be on an event loop: it runs on another
    one, in a thread of its own."""
    return start_in_thread(lambda: asyncio.run(work), name=name).result()


async def call_user_code(function: Callable[..., Any], *args: Any, name: str, calls_back: bool = False) -> Any:
    """Call a user's function, coroutine or ordinary; the latter does not block the event loop. Raises UserCodeExit if
    it raised SystemExit, StopIteration or the like.

    Args:
        calls_back: whether it waits for the event loop, as an ordinary function that calls the model does; it then
            needs its own thread even if everything else is `stepped`.
    """

    def called() -> Any:
        with contained(in_thread=True):
            return function(*args)

    with contained():
        if inspect.iscoroutinefunction(function) or (is_stepped() and not calls_back):
            result = function(*args)
        else:
            result = await asyncio.wrap_future(start_in_thread(called, name=name))
        return await result if inspect.isawaitable(result) else result
