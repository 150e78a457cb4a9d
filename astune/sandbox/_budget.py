"""Limit on concurrent calls: as many as may use their full memory in half of the machine's; others wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_SHARE = 0.5
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class Budget:
    """Semaphore of `places` for calls from any event loop, first come, first served."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        await self._take()
        try:
            yield
        finally:
            self._give_back()

    async def _take(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except BaseException:  # cancelled, or closed with its loop
            if not turn.cancel() and not turn.cancelled():  # it had come already
                self._give_back()
            raise

    def _give_back(self) -> None:
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1


def places_for(memory_mb: int) -> int:
    """Calls of so many MiB each that fit, at least one."""
    return max(1, int(_SHARE * machine_bytes()) // (memory_mb << 20))


def machine_bytes() -> int:
    """Memory of this machine, or of the container that this process is in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container of that kind, or it reads `max`
        total = min(total, int(_CGROUP.read_text()))
    return total
