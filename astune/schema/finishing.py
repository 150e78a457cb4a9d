"""Work that a cancellation does not cut short: books that must be closed, worlds that must be given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """The result of `work`, and whether the caller was cancelled meanwhile; what that means is the caller's to say."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while True:
        try:
            return await asyncio.shield(task), cancelled
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True


async def gathered(*awaitables: Awaitable[T]) -> list[T]:
    """Await all of them at once. Where some fail, the first failure is raised when none is running any more."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    failures = [each for each in results if isinstance(each, BaseException)]
    if failures:
        raise failures[0]
    return [each for each in results if not isinstance(each, BaseException)]
