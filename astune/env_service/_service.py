"""Endpoints of an environment service, and the release of unused instances.

A request that a client repeats because a response was lost or late is not applied twice: an instance keeps its first
state and its last step's response, and a repetition waits for a call that is still in flight.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import asdict
from typing import Any, TypeVar, cast

from astune.env_service._wire import ANY_ENV, HOSTS, Request
from astune.env_service.places import Instance, Places, Refusal, refusal
from astune.processes.worker import CallFailed, WorkerLost
from astune.schema import EnvError, Message, Task, stable_seed

T = TypeVar("T")
LOOK_FOR_IDLE_S = 1.0

_log = logging.getLogger(__name__)


class _InFlight:
    """Calls that are being answered, by key: a repetition joins the first call, and is not made as well."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def join(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `call`, or of the call with this key that is in flight; both raise the same."""
        task = cast("asyncio.Task[T] | None", self._tasks.get(key))
        if task is None:
            task = self._tasks[key] = asyncio.create_task(call())
            task.add_done_callback(lambda _: self._tasks.pop(key))
        return await asyncio.shield(task)


class Service:
    """Service with a method per endpoint; any of them may raise a `Refusal`.

    Args:
        env: value of `--env`.
        idle_release_s: an instance without a call for that long is released.
        call_timeout_s: an environment that takes longer for one call is ended.
    """

    def __init__(self, places: Places, *, env: str, idle_release_s: float, call_timeout_s: float) -> None:
        self._places = places
        self._env = env
        self._idle_release_s = idle_release_s
        self._call_timeout_s = call_timeout_s
        self._in_flight = _InFlight()
        self._janitor: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start the first process, and begin to look for idle instances. Raises EnvError if the environment cannot be
        hosted."""
        try:
            await self._places.open()
        except (OSError, WorkerLost) as cause:
            raise EnvError(f"{self._env}: {cause}", hint="import its module in Python to see why") from cause
        self._janitor = asyncio.ensure_future(self._look_for_idle())

    async def aclose(self) -> None:
        """End all instances and processes; calls that still come are refused."""
        if self._janitor is not None:
            self._janitor.cancel()
        await self._places.aclose()

    @property
    def capacity(self) -> tuple[int, int, int]:
        """Places taken, left, and of both."""
        return self._places.capacity

    async def get_env_profile(self, request: Request) -> list[str]:
        self._require_hosted(request.env_type)
        worker = await self._places.take_worker()
        try:
            given = {"split": str(request.params.get("split") or "train"), "params": request.params}
            answer = await worker.call("get_env_profile", timeout_s=self._call_timeout_s, **given)
        except (CallFailed, WorkerLost) as failure:
            await worker.end()
            raise refusal(failure, "the list of tasks") from failure
        await self._places.give_back(worker)
        return answer

    async def create(self, request: Request) -> Any:
        self._require_hosted(request.env_type)
        task, seed = self._task_of(request)
        known = self._places.find(request.instance_id)
        if known is not None:
            return await self._created_again(known, task)
        instance = Instance(request.instance_id or uuid.uuid4().hex, task)
        self._places.add(instance)
        async with instance.lock, self._places.ended_by_failure(instance):
            worker = await self._places.give_worker(instance)
            given = {"instance_id": instance.instance_id, "task": asdict(task), "seed": seed}
            instance.created = await worker.call("create", timeout_s=self._call_timeout_s, **given)
            instance.used_now()
        return instance.created

    async def step(self, request: Request) -> tuple[Any, int]:
        """The answer, and the index of the next step."""
        action, index = request.messages, _step_index(request)
        if "content" not in action:
            raise Refusal(422, "'messages' is expected to be the action, a message with 'content'")
        async with self._places.using(request.instance_id) as (instance, worker):
            if index is not None and index == instance.steps - 1 and action == instance.last_action:
                return instance.last_step, instance.steps
            if index not in (None, instance.steps):
                raise Refusal(409, _out_of_order(instance, index))
            if instance.last_step is not None and instance.last_step["is_terminated"]:
                raise Refusal(409, f"{instance.name} has ended; create another one")
            async with self._places.ended_by_failure(instance):
                step = await worker.call("step", timeout_s=self._call_timeout_s, action=action)
            _keep(instance, action, step)
            return step, instance.steps

    async def evaluate(self, request: Request) -> float:
        sparse = request.params.get("sparse")
        return await self._ask(request, "evaluate", sparse=True if sparse is None else bool(sparse))

    async def get_info(self, request: Request) -> str:
        return await self._ask(request, "get_info")

    async def release(self, request: Request) -> bool:
        """Return whether there was such an instance. One that is at work is not waited for."""
        instance = self._places.find(request.instance_id)
        if instance is None:
            return False
        await self._in_flight.join((instance.instance_id, "release"), lambda: self._release(instance))
        return True

    async def _release(self, instance: Instance) -> None:
        if instance.lock.locked():
            await self._places.end(instance, "it was released during a call")
        else:
            await self._close(instance, "it was released")

    async def _ask(self, request: Request, name: str, **given: Any) -> Any:
        async def ask() -> Any:
            async with (
                self._places.using(request.instance_id) as (instance, worker),
                self._places.ended_by_failure(instance, may_raise=True),
            ):
                return await worker.call(name, timeout_s=self._call_timeout_s, **given)

        return await self._in_flight.join((request.instance_id, name, *given.values()), ask)

    async def _close(self, instance: Instance, reason: str, *, idle_s: float = 0.0) -> bool:
        """Close it, unless it was used in the last `idle_s` seconds; return whether it was closed."""
        async with instance.lock, self._places.ended_by_failure(instance):
            if not instance.is_idle_for(idle_s):
                return False
            await self._places.close(instance, reason, timeout_s=self._call_timeout_s)
        return True

    async def _created_again(self, instance: Instance, task: Task) -> Any:
        async with instance.lock:
            if instance.created is not None and instance.task == task and instance.steps == 0:
                return instance.created
        if self._places.find(instance.instance_id) is not instance:
            raise self._places.unknown(instance.instance_id)
        raise Refusal(409, f"{instance.name} already exists")

    def _require_hosted(self, env_type: str) -> None:
        """Check the requested type: clients send the value of `--env`, its class name alone, or nothing."""
        if env_type not in (self._env, self._env.rpartition("->")[2].strip(), ANY_ENV):
            raise Refusal(404, f"{HOSTS} {self._env}, not {env_type!r}")

    def _task_of(self, request: Request) -> tuple[Task, int]:
        if not request.task_id:
            raise Refusal(422, "'task_id' is missing")
        own: dict[str, Any] = {"task_id": request.task_id, "main_query": request.task_id, "env_type": self._env}
        try:
            task = Task(**(request.params.get("task") or own))
            given = request.params.get("seed")
            seed = stable_seed(0, request.task_id) if given is None else int(given)
        except (TypeError, ValueError) as cause:
            raise Refusal(422, f"params.task or params.seed: {cause}") from cause
        if task.task_id != request.task_id:
            raise Refusal(422, f"'task_id' is {request.task_id!r}, and params.task.task_id is {task.task_id!r}")
        return task, seed

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_FOR_IDLE_S)
            for instance in self._places.idle_for(self._idle_release_s):
                closing = asyncio.ensure_future(self._close_idle(instance))  # one may take its whole timeout
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            await self._places.trim()

    async def _close_idle(self, instance: Instance) -> None:
        """Close it, unless it is used before that."""
        reason = f"it was released after {self._idle_release_s:g} s without a call; see --idle-release-s"
        try:
            if await self._close(instance, reason, idle_s=self._idle_release_s):
                _log.info("%s: %s", instance.name, reason)
        except Refusal as failure:  # no client waits for the response
            _log.warning("%s", failure.detail)


def _step_index(request: Request) -> int | None:
    index = request.params.get("step_index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise Refusal(422, f"params.step_index is expected to be a whole number, and is {index!r}")
    return index


def _keep(instance: Instance, action: Message, step: Any) -> None:
    instance.steps += 1
    instance.last_action = action
    instance.last_step = step


def _out_of_order(instance: Instance, index: int | None) -> str:
    if index == instance.steps - 1:
        return f"{instance.name} took step {index} with another action"
    return f"{instance.name} is at step {instance.steps}, and was asked for step {index}"
