"""Calls that are being answered, by key: a repetition joins the first call, and is not made as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class InFlight:
    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def join(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `call`, or of the call with this key that is in flight; both raise the same."""
        task = cast("asyncio.Task[T] | None", self._tasks.get(key))
        if task is None:
            task = self._tasks[key] = asyncio.create_task(call())
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(task)
