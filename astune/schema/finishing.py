"""Work that a cancellation does not interrupt, such as token accounting and releasing environments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_CANCELLATIONS = 20
_BETWEEN_CANCELLATIONS_S = 0.5


async def to_the_end(work: Awaitable[T]) -> tuple[T, bool]:
    """Return the result of `work`, and whether the caller was cancelled meanwhile, which it has to handle."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while True:
        try:
            return await asyncio.shield(task), cancelled
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True


async def cancel_until_ended(running: Callable[[], Iterable[asyncio.Future[Any]]]) -> None:
    """Cancel what is running until nothing is: agent frameworks swallow cancellations. What resists for ten seconds is
    abandoned."""
    for _ in range(_CANCELLATIONS):
        if not (tasks := set(running())):
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_BETWEEN_CANCELLATIONS_S)


async def gathered(*awaitables: Awaitable[T]) -> list[T]:
    """Await all of them concurrently. If some fail, raise the first failure once none is running any more."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    failures = [each for each in results if isinstance(each, BaseException)]
    if failures:
        raise failures[0]
    return [each for each in results if not isinstance(each, BaseException)]
