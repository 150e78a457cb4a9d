"""Wrapper that enforces an environment's contract: the right types, nothing before `create`, no step after the end.

Used in this process and in a service's. Calls are synchronous and do not overlap; the environment's exceptions pass
through.
"""

from __future__ import annotations

import math

from astune.env_service.base import Environment, EnvState, EnvStep
from astune.schema import EnvError, Message, Task


class CheckedEnvironment:
    def __init__(self, environment_class: type[Environment], task: Task, seed: int) -> None:
        self._class = environment_class
        self._task = task
        self._seed = seed
        self._environment: Environment | None = None
        self._finished = False

    def create(self) -> EnvState:
        self._environment = self._class(self._task, self._seed)
        state = self._environment.get_init_state()
        if not isinstance(state, EnvState):
            raise EnvError(
                f"{self.name('get_init_state')} returned {type(state).__name__}",
                hint="return EnvState(state=[...messages...])",
            )
        return state

    def step(self, action: Message) -> EnvStep:
        if self._finished:
            raise EnvError(f"{self.name('step')}: the episode is over", hint="leave the loop when a step is terminated")
        step = self._instance().step(action)
        if not isinstance(step, EnvStep):
            raise EnvError(f"{self.name('step')} returned {type(step).__name__}", hint="return an EnvStep")
        self._finished = step.is_terminated
        return step

    def evaluate(self, sparse: bool) -> float:
        score = float(self._instance().evaluate(sparse))
        if not math.isfinite(score):
            raise EnvError(f"{self.name('evaluate')} returned {score}", hint="return a finite number, 0 to 1")
        return score

    def get_info(self) -> str:
        return self._instance().get_info()

    def close(self) -> None:
        """Close the environment; no-op if repeated, or before `create`."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def name(self, method: str) -> str:
        """Name of the call in errors."""
        return f"environment {self._class.__name__}.{method} on task {self._task.task_id}"

    def _instance(self) -> Environment:
        if self._environment is None:
            raise EnvError(f"{self._class.__name__} was used before create or after release")
        return self._environment
