"""An environment's own task used as a world with another objective.

`objective` in a task's metadata has the world and a text; the objective is reached once an observation contains the
text, which the agent did not write itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from astune.env_service.base import EnvState, EnvStep, text_of
from astune.env_service.handle import EnvironmentHandle
from astune.schema import EnvError, Message, Task

OBJECTIVE = "objective"
"""The metadata field: `{"world": {"task_id", "main_query", "metadata"}, "reached": text}`."""


def world_of(task: Task) -> Task:
    """The environment's own task in which the objective of `task` is to be reached. Raises EnvError if the metadata
    field is not of its form."""
    objective: Any = task.metadata[OBJECTIVE]
    try:
        world = objective["world"]
        return Task(
            world["task_id"],
            main_query=world.get("main_query") or world["task_id"],
            env_type=task.env_type,
            metadata=dict(world.get("metadata") or {}),
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise EnvError(
            f"metadata.{OBJECTIVE} of task {task.task_id} is invalid: {cause!r}",
            hint='write {"world": {"task_id": "..."}, "reached": "..."}',
        ) from cause


class ObjectiveHandle(EnvironmentHandle):
    """`inner`, where the question is the task's own, and the reward and the end are its objective's."""

    def __init__(self, inner: EnvironmentHandle, task: Task) -> None:
        self._inner = inner
        self._question = task.main_query
        self._text = str(task.metadata[OBJECTIVE].get("reached", ""))
        self._reached = False
        if not self._text.strip():
            raise EnvError(f"metadata.{OBJECTIVE}.reached of task {task.task_id} is empty", hint="write a text")

    @property
    def quick(self) -> bool:
        return self._inner.quick

    async def create(self) -> EnvState:
        begun = await self._inner.create()
        asked = [index for index, message in enumerate(begun.state) if message.get("role") == "user"]
        messages = list(begun.state)
        question: Message = {"role": "user", "content": self._question}
        messages[asked[-1] : asked[-1] + 1] = [question] if asked else []
        return EnvState(messages if asked else [*messages, question], begun.info)

    async def step(self, action: Message) -> EnvStep:
        return self._seen(action, await self._inner.step(action))

    def step_now(self, action: Message) -> EnvStep:
        return self._seen(action, self._inner.step_now(action))

    async def evaluate(self, sparse: bool = True) -> float:
        return float(self._reached)

    def evaluate_now(self, sparse: bool = True) -> float:
        return float(self._reached)

    async def get_info(self) -> str:
        return await self._inner.get_info()

    def get_info_now(self) -> str:
        return self._inner.get_info_now()

    async def release(self) -> None:
        await self._inner.release()

    def _seen(self, action: Message, step: EnvStep) -> EnvStep:
        shown = any(self._text in text_of(message) for message in step.state)
        now = shown and not self._reached and self._text not in text_of(action)
        self._reached = self._reached or now
        return replace(step, reward=float(now), is_terminated=step.is_terminated or self._reached)
