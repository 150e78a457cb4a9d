"""The live instances of an environment service, each in a place and a process of its own.

What a client repeats because an answer was lost is not done twice: an instance keeps its first state and the answer to
its last step. An instance that failed, was idle for too long or was released is gone, and its id says why for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from astune.env_service._wire import ANY_ENV, Request, shortened
from astune.env_service._workers import CallFailed, Worker, WorkerLost, WorkerPool
from astune.schema import EnvError, Message, Task, stable_seed

RETRY_AFTER_S = 1
"""What a client is told to wait for a place; instances of short episodes end many times a second."""
REMEMBERED = 1000
"""Gone instances whose end is still known."""
LOOK_FOR_IDLE_S = 1.0
CLOSING_S = 5.0
"""Seconds that environments have to close when the server ends."""

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """An answer of 400 or more."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = shortened(detail)
        self.headers = headers or {}


@dataclass
class Instance:
    """One live instance; `lock` is held while its process works for it."""

    instance_id: str
    task: Task
    worker: Worker | None = None
    created: Any = None
    steps: int = 0
    last_action: Message | None = None
    last_step: Any = None
    last_used: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return f"instance {self.instance_id} of task {self.task.task_id}"


class Instances:
    """What the endpoints do.

    Args:
        max_instances: places; a `create` beyond them is refused with 429.
        idle_release_s: an instance without a call for that long is released.
        call_timeout_s: an environment that takes longer for one call is ended.
    """

    def __init__(
        self, pool: WorkerPool, *, env: str, max_instances: int, idle_release_s: float, call_timeout_s: float
    ) -> None:
        self._pool = pool
        self._env = env
        self._places = max_instances
        self._idle_release_s = idle_release_s
        self._call_timeout_s = call_timeout_s
        self._live: dict[str, Instance] = {}
        self._gone: dict[str, str] = {}
        self._ending = False
        self._janitor: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the first process, and begin to look for idle instances.

        Raises:
            EnvError, ConfigError: the environment cannot be hosted.
        """
        try:
            await self._pool.open()
        except (OSError, WorkerLost) as cause:
            raise EnvError(f"{self._env}: {cause}", hint="import its module in Python to see why") from cause
        self._janitor = asyncio.ensure_future(self._look_for_idle())

    @property
    def capacity(self) -> tuple[int, int, int]:
        """Places taken, left, and of both."""
        return len(self._live), self._places - len(self._live), self._places

    async def get_env_profile(self, request: Request) -> list[str]:
        self._require_hosted(request.env_type)
        worker = await self._taken()
        try:
            given = {"split": str(request.params.get("split") or "train"), "params": request.params}
            answer = await worker.call("get_env_profile", timeout_s=self._call_timeout_s, **given)
        except (CallFailed, WorkerLost) as failure:
            await worker.end()
            raise _refusal(failure, "the list of tasks") from failure
        await self._pool.give_back(worker)
        return answer

    async def create(self, request: Request) -> Any:
        self._require_hosted(request.env_type)
        task, seed = self._task_of(request)
        instance_id = request.instance_id or uuid.uuid4().hex
        known = self._live.get(instance_id)
        if known is not None:
            return await self._created_again(known, task)
        if len(self._live) >= self._places:
            raise Refusal(
                429,
                f"all {self._places} places are taken; start the server with a larger --max-instances, or run fewer "
                "episodes at once",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        instance = self._live[instance_id] = Instance(instance_id, task)
        self._gone.pop(instance_id, None)
        async with instance.lock, self._ended_by_failure(instance):
            worker = await self._taken()
            if instance_id not in self._live:  # released meanwhile
                await self._pool.give_back(worker)
                raise self._unknown(instance_id)
            instance.worker = worker
            given = {"instance_id": instance_id, "task": task.model_dump(mode="json"), "seed": seed}
            instance.created = await worker.call("create", timeout_s=self._call_timeout_s, **given)
        return instance.created

    async def step(self, request: Request) -> tuple[Any, int]:
        """The answer, and the index of the next step."""
        action, index = request.messages, request.params.get("step_index")
        if "content" not in action:
            raise Refusal(422, "'messages' is expected to be the action, a message with 'content'")
        if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
            raise Refusal(422, f"params.step_index is expected to be a whole number, and is {index!r}")
        async with self._using(request) as (instance, worker):
            if index is not None and index == instance.steps - 1 and action == instance.last_action:
                return instance.last_step, instance.steps
            if index not in (None, instance.steps):
                raise Refusal(409, _out_of_order(instance, index))
            if instance.last_step is not None and instance.last_step["is_terminated"]:
                raise Refusal(409, f"{instance.name} has ended; create another one")
            async with self._ended_by_failure(instance):
                step = await worker.call("step", timeout_s=self._call_timeout_s, action=action)
            instance.steps, instance.last_action, instance.last_step = instance.steps + 1, action, step
            return step, instance.steps

    async def evaluate(self, request: Request) -> float:
        sparse = bool(request.params.get("sparse", True))
        return await self._ask(request, lambda worker: self._call(worker, "evaluate", sparse=sparse))

    async def get_info(self, request: Request) -> str:
        return await self._ask(request, lambda worker: self._call(worker, "get_info"))

    async def release(self, request: Request) -> bool:
        """Whether there was such an instance. One that is at work is not waited for."""
        instance = self._live.get(request.instance_id or "")
        if instance is None:
            return False
        if instance.lock.locked():
            await self._end(instance, "it was released during a call")
            return True
        async with instance.lock, self._ended_by_failure(instance):
            await self._close(instance, "it was released", timeout_s=self._call_timeout_s)
        return True

    async def aclose(self) -> None:
        """Refuse all calls from now on, let environments close, for a moment, and end all processes."""
        self._ending = True
        if self._janitor is not None:
            self._janitor.cancel()

        async def finish(instance: Instance) -> None:
            if not instance.lock.locked():
                with contextlib.suppress(CallFailed, WorkerLost):
                    await self._close(instance, "the server ended", timeout_s=CLOSING_S)
            await self._end(instance, "the server ended")

        await asyncio.gather(*(finish(instance) for instance in list(self._live.values())))
        await self._pool.aclose()

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_IDLE_S)
            for instance in list(self._live.values()):
                if time.monotonic() - instance.last_used > self._idle_release_s and not instance.lock.locked():
                    await self._release_idle(instance)
            await self._pool.trim()

    async def _release_idle(self, instance: Instance) -> None:
        reason = f"it was released after {self._idle_release_s:g} s without a call; see --idle-release-s"
        _log.info("%s: %s", instance.name, reason)
        try:
            async with instance.lock, self._ended_by_failure(instance):
                await self._close(instance, reason, timeout_s=self._call_timeout_s)
        except Refusal as failure:  # nobody waits for the answer
            _log.warning("%s", failure.detail)

    def _require_hosted(self, env_type: str) -> None:
        """Clients write what `--env` says, its class's name alone, or nothing at all."""
        if env_type not in (self._env, self._env.rpartition("->")[2].strip(), ANY_ENV):
            raise Refusal(404, f"this server hosts {self._env}, not {env_type!r}")

    def _task_of(self, request: Request) -> tuple[Task, int]:
        if not request.task_id:
            raise Refusal(422, "'task_id' is missing")
        own = {"task_id": request.task_id, "main_query": request.task_id, "env_type": self._env}
        try:
            task = Task.model_validate(request.params.get("task") or own)
            seed = int(request.params.get("seed", stable_seed(0, request.task_id)))
        except (ValidationError, TypeError, ValueError) as cause:
            raise Refusal(422, f"params.task or params.seed: {cause}") from cause
        if task.task_id != request.task_id:
            raise Refusal(422, f"'task_id' is {request.task_id!r}, and params.task.task_id is {task.task_id!r}")
        return task, seed

    async def _created_again(self, instance: Instance, task: Task) -> Any:
        async with instance.lock:
            if instance.created is not None and instance.task == task and instance.steps == 0:
                return instance.created
        if instance.instance_id not in self._live:
            raise self._unknown(instance.instance_id)
        raise Refusal(409, f"{instance.name} is there already")

    async def _ask(self, request: Request, ask: Callable[[Worker], Awaitable[Any]]) -> Any:
        async with self._using(request) as (instance, worker), self._ended_by_failure(instance, may_raise=True):
            return await ask(worker)

    async def _call(self, worker: Worker, name: str, **given: Any) -> Any:
        return await worker.call(name, timeout_s=self._call_timeout_s, **given)

    @asynccontextmanager
    async def _using(self, request: Request) -> AsyncIterator[tuple[Instance, Worker]]:
        """The live instance that is asked for, while nothing else uses it."""
        instance_id = request.instance_id or ""
        instance = self._live.get(instance_id)
        if instance is None:
            raise self._unknown(instance_id)
        async with instance.lock:
            if instance.worker is None or instance_id not in self._live:  # it ended while this call waited
                raise self._unknown(instance_id)
            try:
                yield instance, instance.worker
            finally:
                instance.last_used = time.monotonic()

    @asynccontextmanager
    async def _ended_by_failure(self, instance: Instance, *, may_raise: bool = False) -> AsyncIterator[None]:
        """A failure within ends the instance: nobody knows what state it is in.

        Args:
            may_raise: what the environment raises changes nothing in it.
        """
        try:
            yield
        except (CallFailed, WorkerLost) as failure:
            if instance.instance_id not in self._live:  # somebody else ended it
                raise self._unknown(instance.instance_id) from failure
            if not (may_raise and isinstance(failure, CallFailed)):
                await self._end(instance, str(failure))
            raise _refusal(failure, instance.name) from failure
        except BaseException:
            await self._end(instance, "its call was cut short")
            raise

    async def _taken(self) -> Worker:
        if self._ending:
            raise Refusal(503, "the server ends")
        try:
            return await self._pool.take()
        except (OSError, WorkerLost, EnvError) as failure:
            raise Refusal(503, f"no process can be started: {failure}") from failure

    async def _close(self, instance: Instance, reason: str, *, timeout_s: float) -> None:
        """Let the environment close, and use its process again."""
        worker = instance.worker
        if worker is None:
            return
        await worker.call("close", timeout_s=timeout_s)
        instance.worker = None
        self._forget(instance, reason)
        await self._pool.give_back(worker)

    async def _end(self, instance: Instance, reason: str) -> None:
        worker, instance.worker = instance.worker, None
        self._forget(instance, reason)
        if worker is not None:
            await worker.end()

    def _forget(self, instance: Instance, reason: str) -> None:
        if self._live.pop(instance.instance_id, None) is None:
            return
        self._gone[instance.instance_id] = reason
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _unknown(self, instance_id: str) -> Refusal:
        if instance_id in self._gone:
            return Refusal(410, f"instance {instance_id} is gone: {self._gone[instance_id]}")
        return Refusal(404, f"there is no instance {instance_id!r}; was the server started anew? Create another one")


def _refusal(failure: CallFailed | WorkerLost, whose: str) -> Refusal:
    status = 400 if isinstance(failure, CallFailed) and failure.is_refusal else 500
    return Refusal(status, f"{whose}: {failure}")


def _out_of_order(instance: Instance, index: int) -> str:
    if index == instance.steps - 1:
        return f"{instance.name} took step {index} with another action"
    return f"{instance.name} is at step {instance.steps}, and was asked for step {index}"
