"""Tasks of an environment: it is explored first, and states reached on the way become objectives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from astune.data_generator.draft import Draft
from astune.env_service.base import text_of
from astune.env_service.handle import EnvironmentHandle, open_environment
from astune.env_service.objective import OBJECTIVE
from astune.helper_model import Form, HelperModel, data
from astune.schema import EnvError, Message, Task

_STEPS = 10
_ROUNDS = 50
_SHOWN = 2_000
ACTIONS = "actions"


class _Action(Form):
    action: str


class _Objective(Form):
    objective: str
    step: int
    reached: str


@dataclass(frozen=True, slots=True)
class Explore:
    """Asks for one walk through a world; `number` tells a second walk from the first."""

    world: Task
    number: int


class ExplorationSource:
    """Drafts from walks of the helper model through worlds, which are tasks that the environment itself has."""

    def __init__(self, model: HelperModel, worlds: Sequence[Task], seed: int) -> None:
        self._model = model
        self._worlds = worlds
        self._seed = seed

    def asks(self) -> Iterator[Explore]:
        for number in range(_ROUNDS):
            worlds = list(self._worlds)
            random.Random(f"{self._seed}/{number}").shuffle(worlds)
            yield from (Explore(world, number) for world in worlds)

    async def drafts(self, ask: Explore) -> list[Draft]:
        """An objective, from one walk."""
        beginning, walked = await self._walked(ask)
        if not walked:
            return []
        steps = [{"step": n, "action": action, "observation": seen} for n, (action, seen) in enumerate(walked, start=1)]

        def check(found: _Objective) -> None:
            if not 1 <= found.step <= len(walked):
                raise ValueError(f"step is {found.step}, and there are {len(walked)}")
            if not found.reached.strip() or found.reached not in walked[found.step - 1][1]:
                raise ValueError("`reached` is not copied from the observation of that step")

        found = await self._model.ask_json(
            self._model.prompts.get("data_objective"),
            data(beginning=beginning, steps=steps),
            _Objective,
            number=ask.number,
            check=check,
        )
        world = {"task_id": ask.world.task_id, "main_query": ask.world.main_query, "metadata": ask.world.metadata}
        made_of: dict[str, Any] = {
            OBJECTIVE: {"world": world, "reached": found.reached},
            ACTIONS: [action for action, _ in walked[: found.step]],
        }
        return [
            Draft(
                found.objective,
                found.reached,
                group=ask.world.task_id,
                made_of=made_of,
                env_type=ask.world.env_type,
            )
        ]

    async def _walked(self, ask: Explore) -> tuple[str, list[tuple[str, str]]]:
        """Initial observation, and actions with their results."""
        instruction = self._model.prompts.get("data_explore")
        handle = _opened(ask.world)
        walked: list[tuple[str, str]] = []
        try:
            beginning = _text((await handle.create()).state)
            while len(walked) < _STEPS:
                steps = [{"action": action, "observation": seen} for action, seen in walked]
                asked = data(beginning=beginning, steps=steps)
                action = (await self._model.ask_json(instruction, asked, _Action, number=ask.number)).action
                step = await handle.step(_message_of(action))
                walked.append((action, _text(step.state)))
                if step.is_terminated:
                    break
        finally:
            await handle.release()
        return beginning, walked


async def reproduced(draft: Draft) -> Draft | str:
    """Check that the actions, executed again in a fresh world, reach the objective with the last one and not before."""
    actions: list[str] = draft.made_of[ACTIONS]
    handle = _opened(draft.task())
    try:
        if draft.answer in _text((await handle.create()).state):
            return "it is reached before anything is done"
        number = 0
        terminated = False
        while number < len(actions) and not terminated:
            terminated = (await handle.step(_message_of(actions[number]))).is_terminated
            number += 1
        if not await handle.evaluate():
            return "executed again, it is not reached"
        return draft if number == len(actions) else "fewer actions are enough"
    finally:
        await handle.release()


def _opened(task: Task) -> EnvironmentHandle:
    handle = open_environment(task.env_type, task, seed=0)
    if handle is None:
        raise EnvError(f"task {task.task_id} has no environment to explore", hint="set its env_type")
    return handle


def _message_of(action: str) -> Message:
    return {"role": "assistant", "content": action}


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(text_of(message) for message in messages)[:_SHOWN]
