"""Work that a cancellation does not cut short: books that must be closed, worlds that must be given back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
