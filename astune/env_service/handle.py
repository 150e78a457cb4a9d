"""The handle to one environment instance, and how one is opened by its type.

A handle is what a workflow's proxy and a judge hold; it says nothing of where the instance lives. An
instance of `EmbeddedHandle` lives in this process.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from astune.config.imports import import_class, is_reference
from astune.env_service.base import Environment, EnvState, EnvStep
from astune.schema import AstuneError, EnvError, Message, Task, boundary, is_stepped, start_in_thread

T = TypeVar("T")

NO_ENV = "no_env"


class EnvironmentHandle(ABC):
    """One environment instance, from `create` to `release`. Calls on one handle do not overlap."""

    @property
    def quick(self) -> bool:
        """Whether every call answers within a millisecond, so that nobody needs a thread for it."""
        return False

    @abstractmethod
    async def create(self) -> EnvState:
        """Make the instance; the first call on a handle."""

    @abstractmethod
    async def step(self, action: Message) -> EnvStep: ...

    @abstractmethod
    def step_now(self, action: Message) -> EnvStep:
        """`step` for synchronous callers; it blocks the calling thread."""

    @abstractmethod
    async def evaluate(self, sparse: bool = True) -> float: ...

    @abstractmethod
    async def get_info(self) -> str: ...

    @abstractmethod
    async def release(self) -> None:
        """Give the instance back; again, or before `create`, it does nothing."""


class EmbeddedHandle(EnvironmentHandle):
    """An environment in this process. One that is not `quick` runs in a thread, so that nothing else waits for it."""

    def __init__(self, environment_class: type[Environment], task: Task, seed: int) -> None:
        self._class = environment_class
        self._task = task
        self._seed = seed
        self._environment: Environment | None = None
        self._finished = False
        self._lock = threading.Lock()

    @property
    def quick(self) -> bool:
        return self._class.quick or is_stepped()

    async def create(self) -> EnvState:
        return await self._call("create", self._create)

    async def step(self, action: Message) -> EnvStep:
        return await self._call("step", lambda: self._step(action))

    def step_now(self, action: Message) -> EnvStep:
        try:
            with self._lock:
                return self._step(action)
        except AstuneError:
            raise
        except Exception as cause:
            raise EnvError(f"{self._name('step')}: {type(cause).__name__}: {cause}") from cause

    async def evaluate(self, sparse: bool = True) -> float:
        return float(await self._call("evaluate", lambda: self._instance().evaluate(sparse)))

    async def get_info(self) -> str:
        return await self._call("get_info", lambda: self._instance().get_info())

    async def release(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            await self._call("close", environment.close)

    def _create(self) -> EnvState:
        self._environment = self._class(self._task, self._seed)
        state = self._environment.get_init_state()
        if not isinstance(state, EnvState):
            raise EnvError(
                f"{self._name('get_init_state')} returned {type(state).__name__}",
                hint="return EnvState(state=[...messages...])",
            )
        return state

    def _step(self, action: Message) -> EnvStep:
        if self._finished:
            raise EnvError(
                f"{self._name('step')}: the episode is over", hint="leave the loop when a step says it is terminated"
            )
        step = self._instance().step(action)
        if not isinstance(step, EnvStep):
            raise EnvError(f"{self._name('step')} returned {type(step).__name__}", hint="return an EnvStep")
        self._finished = step.is_terminated
        return step

    def _instance(self) -> Environment:
        if self._environment is None:
            raise EnvError(f"{self._class.__name__} was used before create or after release")
        return self._environment

    def _name(self, method: str) -> str:
        return f"environment {self._class.__name__}.{method} on task {self._task.task_id}"

    async def _call(self, method: str, call: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return call()

        async with boundary(EnvError, self._name(method)):
            return (
                locked()
                if self.quick
                else await asyncio.wrap_future(start_in_thread(locked, name=f"astune-env-{method}"))
            )


def _calculator() -> type[Environment]:
    from astune.env_service.calculator import Calculator

    return Calculator


def _frozen_lake() -> type[Environment]:
    from astune.env_service.frozenlake import FrozenLake

    return FrozenLake


EMBEDDED: dict[str, Callable[[], type[Environment]]] = {"calculator": _calculator, "frozenlake": _frozen_lake}
"""What `env_type` may say beside `no_env` and `module->Class`."""


def open_environment(env_type: str, task: Task, seed: int) -> EnvironmentHandle | None:
    """A handle to a fresh environment for `task`, nothing made yet; None for `no_env`.

    Raises:
        EnvError: there is no such environment type.
        ConfigError: a `module->Class` that does not import.
    """
    if env_type == NO_ENV:
        return None
    if is_reference(env_type):
        environment_class = import_class(env_type, key=f"env_type of task {task.task_id}", base=Environment)
    elif env_type in EMBEDDED:
        environment_class = EMBEDDED[env_type]()
    else:
        known = ", ".join([NO_ENV, *EMBEDDED])
        raise EnvError(f"task {task.task_id} has env_type {env_type!r}", hint=f"use one of {known}, or 'module->Class'")
    return EmbeddedHandle(environment_class, task, seed)
