"""Pool of processes that answer calls, started in advance.

A process returned without any failure is reused, unless it opts out; any other is killed with its descendants. If the
first one `forks`, it is the template from which all others are forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable

from astune.processes.worker import Worker, WorkerLost
from astune.schema import EnvError

IDLE_S = 60.0
"""Seconds after which an idle process beyond those that are kept warm is ended."""

_log = logging.getLogger(__name__)


class WorkerPool:
    """Processes of one kind: `warm` of them are ready in addition to those in use.

    Args:
        start: starts a process that answers calls, or that `forks` others that do.
    """

    def __init__(self, start: Callable[[], Awaitable[Worker]], *, warm: int) -> None:
        self._start_worker = start
        self._warm = warm
        self._idle: list[Worker] = []
        self._waiters: deque[asyncio.Future[Worker]] = deque()
        self._starting = 0
        self._template: Worker | None = None
        self._forking = asyncio.Lock()
        self._at_once = asyncio.Semaphore(os.cpu_count() or 1)
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start the first process, which shows whether any can; others follow by themselves."""
        self._keep(await self._start())
        self._refill()

    async def take(self) -> Worker:
        """Acquire a process without an instance: a ready one, or the next that is started or returned.

        Raises:
            OSError, WorkerLost, EnvError: it could not be started.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                self._refill()
                return worker
            await worker.end()
        waiter: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._refill()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._keep(waiter.result())
            raise

    async def give_back(self, worker: Worker) -> None:
        """Return a process whose instance was closed."""
        if worker.reusable and worker.is_running:
            self._keep(worker)
        else:
            await worker.end()
            self._refill()

    async def trim(self) -> None:
        """End idle processes, the longest idle first."""
        while len(self._idle) > self._warm and time.monotonic() - self._idle[0].idle_since > IDLE_S:
            await self._idle.pop(0).end()

    async def aclose(self) -> None:
        self._warm = 0
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(WorkerLost("the server ends"))
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        kept = [*self._idle, *([self._template] if self._template is not None else [])]
        await asyncio.gather(*(worker.end() for worker in kept))
        self._idle.clear()

    def _keep(self, worker: Worker) -> None:
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(worker)
            return
        worker.idle_since = time.monotonic()
        self._idle.append(worker)

    def _next_waiter(self) -> asyncio.Future[Worker] | None:
        """Remove and return the longest waiting caller."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # it is when its caller was cancelled
                return waiter
        return None

    async def _start(self) -> Worker:
        async with self._at_once:
            if self._template is None:
                worker = await self._start_worker()
                if not worker.forks:
                    return worker
                self._template = worker
            async with self._forking:
                if self._template.is_running:
                    with contextlib.suppress(OSError, WorkerLost):  # it may have died a moment ago
                        return await self._template.fork()
                await self._template.end()
                self._template = await self._start_worker()
                return await self._template.fork()

    def _refill(self) -> None:
        while len(self._idle) + self._starting < self._warm + len(self._waiters):
            self._starting += 1
            task = asyncio.ensure_future(self._start_one_more())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _start_one_more(self) -> None:
        try:
            worker = await self._start()
        except (OSError, WorkerLost, EnvError) as failure:
            self._report(failure, still_starting=self._starting - 1)
        else:
            self._keep(worker)
        finally:
            self._starting -= 1

    def _report(self, failure: OSError | WorkerLost | EnvError, *, still_starting: int) -> None:
        """Raise it in a waiting caller, unless the processes that still start suffice for all that wait."""
        waiter = self._next_waiter() if still_starting < len(self._waiters) else None
        if waiter is not None:
            waiter.set_exception(failure)
        else:
            _log.warning("a process could not be started: %s", failure)
