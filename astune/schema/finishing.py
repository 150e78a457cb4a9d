"""Work that a cancellation does not interrupt, such as token accounting and releasing environments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


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


async def gathered(*awaitables: Awaitable[T]) -> list[T]:
    """Await all of them concurrently. If some fail, raise the first failure once none is running any more."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    failures = [each for each in results if isinstance(each, BaseException)]
    if failures:
        raise failures[0]
    return [each for each in results if not isinstance(each, BaseException)]
