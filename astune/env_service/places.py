"""Slots of an environment service: the live instances, their processes, and how ended ones ended.

`_service.py` creates, uses and closes instances; failures become a `Refusal` here. Independent of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from astune.processes.pool import WorkerPool
from astune.processes.worker import CallFailed, Worker, WorkerLost
from astune.schema import EnvError, Message, Task
from astune.schema.plain_json import shortened

RETRY_AFTER_S = 1
"""Retry-After for a client that waits for a slot; instances of short episodes end many times a second."""
REMEMBERED = 1000
"""Number of ended instances that are remembered."""
CLOSING_S = 5.0
"""Seconds for environments to close when the server ends."""


class Refusal(Exception):
    """An answer of 400 or more."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = shortened(detail)
        self.headers = headers or {}


@dataclass
class Instance:
    """A live instance; `lock` is held while its process works for it."""

    instance_id: str
    task: Task
    worker: Worker | None = None
    created: Any = None
    steps: int = 0
    last_action: Message | None = None
    last_step: Any = None
    last_used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def used_now(self) -> None:
        self.last_used = time.monotonic()

    def is_idle_for(self, seconds: float) -> bool:
        """Return whether its last call ended at least that long ago."""
        return time.monotonic() - self.last_used >= seconds

    @property
    def name(self) -> str:
        return f"instance {self.instance_id} of task {self.task.task_id}"


class Places:
    """`total` places for instances, with a process from `pool` for each."""

    def __init__(self, pool: WorkerPool, total: int) -> None:
        self._pool = pool
        self._total = total
        self._live: dict[str, Instance] = {}
        self._gone: dict[str, str] = {}
        self._ending = False

    @property
    def capacity(self) -> tuple[int, int, int]:
        """Places taken, left, and of both."""
        return len(self._live), self._total - len(self._live), self._total

    def find(self, instance_id: str | None) -> Instance | None:
        return self._live.get(instance_id or "")

    def add(self, instance: Instance) -> None:
        """Take a place. Raises Refusal if none is free."""
        if len(self._live) >= self._total:
            raise Refusal(
                429,
                f"all {self._total} places are taken; start the server with a larger --max-instances, or run fewer "
                "episodes at once",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self._live[instance.instance_id] = instance
        self._gone.pop(instance.instance_id, None)

    async def open(self) -> None:
        """Start the first process. Raises EnvError if the environment cannot be hosted."""
        await self._pool.open()

    async def take_worker(self) -> Worker:
        """Acquire a process without an instance; the caller returns it, or ends it."""
        if self._ending:
            raise Refusal(503, "the server ends")
        try:
            return await self._pool.take()
        except (OSError, WorkerLost, EnvError) as failure:
            raise Refusal(503, f"no process can be started: {failure}") from failure

    async def give_back(self, worker: Worker) -> None:
        await self._pool.give_back(worker)

    async def give_worker(self, instance: Instance) -> Worker:
        """A process for a new instance."""
        worker = await self.take_worker()
        if self.find(instance.instance_id) is not instance:  # released meanwhile, and perhaps created again
            await self._pool.give_back(worker)
            raise self.unknown(instance.instance_id)
        instance.worker = worker
        return worker

    @asynccontextmanager
    async def using(self, instance_id: str | None) -> AsyncIterator[tuple[Instance, Worker]]:
        """Provide exclusive use of a live instance."""
        instance = self.find(instance_id)
        if instance is None:
            raise self.unknown(instance_id)
        async with instance.lock:
            if instance.worker is None or self.find(instance_id) is not instance:  # it ended while this call waited
                raise self.unknown(instance_id)
            try:
                yield instance, instance.worker
            finally:
                instance.used_now()

    @asynccontextmanager
    async def ended_by_failure(self, instance: Instance, *, may_raise: bool = False) -> AsyncIterator[None]:
        """Context in which a failure ends the instance, whose state is then unknown, and becomes a `Refusal`; with
        `may_raise`, the environment's exceptions leave it unchanged."""
        try:
            yield
        except (CallFailed, WorkerLost) as failure:
            if self.find(instance.instance_id) is not instance:  # ended by another task
                raise self.unknown(instance.instance_id) from failure
            if not (may_raise and isinstance(failure, CallFailed)):
                await self.end(instance, str(failure))
            raise refusal(failure, instance.name) from failure
        except BaseException:
            await self.end(instance, "its call was cut short")
            raise

    async def close(self, instance: Instance, reason: str, *, timeout_s: float) -> None:
        """Let the environment close, and reuse its process."""
        worker = instance.worker
        if worker is None:
            return
        await worker.call("close", timeout_s=timeout_s)
        instance.worker = None
        self._forget(instance, reason)
        await self._pool.give_back(worker)

    async def end(self, instance: Instance, reason: str) -> None:
        """Kill its process; no-op if repeated, or after `close`."""
        worker, instance.worker = instance.worker, None
        self._forget(instance, reason)
        if worker is not None:
            await worker.end()

    def idle_for(self, seconds: float) -> list[Instance]:
        """Instances at no work, without a call for so long."""
        return [
            instance for instance in self._live.values() if instance.is_idle_for(seconds) and not instance.lock.locked()
        ]

    async def trim(self) -> None:
        """End idle processes."""
        await self._pool.trim()

    async def aclose(self) -> None:
        """Stop providing processes, give environments a moment to close, and end all processes."""
        self._ending = True

        async def finish(instance: Instance) -> None:
            if not instance.lock.locked():
                with contextlib.suppress(CallFailed, WorkerLost):
                    await self.close(instance, "the server ended", timeout_s=CLOSING_S)
            await self.end(instance, "the server ended")

        await asyncio.gather(*(finish(instance) for instance in list(self._live.values())))
        await self._pool.aclose()

    def unknown(self, instance_id: str | None) -> Refusal:
        """Describe an instance that does not exist."""
        if instance_id in self._gone:
            return Refusal(410, f"instance {instance_id} is gone: {self._gone[instance_id]}")
        return Refusal(
            404, f"there is no instance {instance_id!r}; the server may have been restarted, so create a new one"
        )

    def _forget(self, instance: Instance, reason: str) -> None:
        if self.find(instance.instance_id) is not instance:
            return
        del self._live[instance.instance_id]
        self._gone[instance.instance_id] = reason
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]


def refusal(failure: CallFailed | WorkerLost, subject: str) -> Refusal:
    """Return status 400 if the environment gave a hint, else 500."""
    status = 400 if isinstance(failure, CallFailed) and failure.is_refusal else 500
    return Refusal(status, f"{subject}: {failure}")
