"""Handle to one environment instance, and opening one by its type.

Workflow proxies and judges use handles, which hide where the instance lives. An `EmbeddedHandle` is in this process.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from astune.env_service._checked import CheckedEnvironment
from astune.env_service.base import Environment, EnvState, EnvStep
from astune.env_service.built_in import NO_ENV, environment_class
from astune.schema import EnvError, Message, Task, boundary, boundary_now, contained, is_stepped, start_in_thread

T = TypeVar("T")

ENV_URL = "env_url"
"""The field of a task's metadata that names the service which hosts its environment."""
CALL_TIMEOUT_S = 300.0
RELEASE_S = 30.0
"""Seconds to wait for an environment to close; one that is stuck in a step never will."""


class EnvironmentHandle(ABC):
    """An environment instance, from `create` to `release`. Calls on one handle do not overlap."""

    @property
    def quick(self) -> bool:
        """Return whether every call returns within a millisecond, so that no thread is needed."""
        return False

    @abstractmethod
    async def create(self) -> EnvState:
        """Create the instance; the first call on a handle."""

    @abstractmethod
    async def step(self, action: Message) -> EnvStep: ...

    @abstractmethod
    def step_now(self, action: Message) -> EnvStep:
        """`step` for synchronous callers; it blocks the calling thread."""

    @abstractmethod
    async def evaluate(self, sparse: bool = True) -> float: ...

    @abstractmethod
    def evaluate_now(self, sparse: bool = True) -> float:
        """`evaluate` for synchronous callers; it blocks the calling thread."""

    @abstractmethod
    async def get_info(self) -> str: ...

    @abstractmethod
    def get_info_now(self) -> str:
        """`get_info` for synchronous callers; it blocks the calling thread."""

    @abstractmethod
    async def release(self) -> None:
        """Release the instance; no-op if repeated, or before `create`."""


class SynchronousHandle:
    """Synchronous interface to an instance."""

    def __init__(self, handle: EnvironmentHandle) -> None:
        self._handle = handle

    def evaluate(self, sparse: bool = True) -> float:
        return self._handle.evaluate_now(sparse)

    def get_info(self) -> str:
        return self._handle.get_info_now()


class EmbeddedHandle(EnvironmentHandle):
    """An environment in this process. One that is not `quick` runs in a thread, so that nothing else waits for it."""

    def __init__(self, environment_class: type[Environment], task: Task, seed: int) -> None:
        self._class = environment_class
        self._environment = CheckedEnvironment(environment_class, task, seed)
        self._lock = threading.Lock()

    @property
    def quick(self) -> bool:
        return self._class.quick or is_stepped()

    async def create(self) -> EnvState:
        return await self._call("create", self._environment.create)

    async def step(self, action: Message) -> EnvStep:
        return await self._call("step", lambda: self._environment.step(action))

    def step_now(self, action: Message) -> EnvStep:
        return self._call_now("step", lambda: self._environment.step(action))

    async def evaluate(self, sparse: bool = True) -> float:
        return await self._call("evaluate", lambda: self._environment.evaluate(sparse))

    def evaluate_now(self, sparse: bool = True) -> float:
        return self._call_now("evaluate", lambda: self._environment.evaluate(sparse))

    async def get_info(self) -> str:
        return await self._call("get_info", self._environment.get_info)

    def get_info_now(self) -> str:
        return self._call_now("get_info", self._environment.get_info)

    async def release(self) -> None:
        await self._call("close", self._environment.close)

    def _call_now(self, method: str, call: Callable[[], T]) -> T:
        with boundary_now(EnvError, self._environment.name(method)), self._lock, contained(in_thread=True):
            return call()

    async def _call(self, method: str, call: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock, contained(in_thread=True):
                return call()

        async with boundary(EnvError, self._environment.name(method)):
            return (
                locked()
                if self.quick
                else await asyncio.wrap_future(start_in_thread(locked, name=f"astune-env-{method}"))
            )


def open_environment(
    env_type: str, task: Task, seed: int, *, timeout_s: float = CALL_TIMEOUT_S
) -> EnvironmentHandle | None:
    """Return a handle to a fresh environment for `task`, with nothing created yet; None for `no_env`.

    Args:
        timeout_s: seconds that one call of a service may take, its repetitions included. Embedded ones are limited by
            their caller.

    Raises:
        EnvError: there is no such environment type.
        ConfigError: a `module->Class` that does not import.
    """
    if env_type == NO_ENV:
        return None
    if "objective" in task.metadata:
        from astune.env_service.objective import ObjectiveHandle, world_of

        inner = open_environment(env_type, world_of(task), seed, timeout_s=timeout_s)
        return None if inner is None else ObjectiveHandle(inner, task)
    if task.metadata.get(ENV_URL):
        from astune.env_service.client import ServiceHandle

        return ServiceHandle(str(task.metadata[ENV_URL]), env_type, task, seed, timeout_s=timeout_s)
    return EmbeddedHandle(environment_class(env_type, asked_by=f"env_type of task {task.task_id}"), task, seed)
