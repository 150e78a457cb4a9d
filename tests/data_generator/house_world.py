"""A small world for tests: a house with a thing in each room."""

from __future__ import annotations

from typing import ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep
from astune.schema import Message

ROOMS = ("hall", "attic", "cellar", "garden", "tower")


class House(Environment):
    """Rooms with a thing in each; `open ROOM` shows it. The door of the tower is open only sometimes."""

    quick: ClassVar[bool] = True
    opened: ClassVar[int] = 0

    def get_init_state(self) -> EnvState:
        return EnvState([{"role": "user", "content": f"House {self.task.task_id}: open one of {', '.join(ROOMS)}."}])

    def step(self, action: Message) -> EnvStep:
        room = str(action["content"]).removeprefix("open ")
        seen = f"In the {room} lies thing {self.task.task_id}-{len(room)}."
        if room == "tower":
            House.opened += 1
            seen = "The door is open: a bell rings." if House.opened % 2 else "The door is locked."
        if room not in ROOMS:
            seen = f"There is no {room}."
        return EnvStep([{"role": "user", "content": seen}], 0.0, False)

    def evaluate(self, sparse: bool = True) -> float:
        return 0.0


class SteadyHouse(House):
    """The door of the tower is always locked."""

    def step(self, action: Message) -> EnvStep:
        House.opened = 1
        return super().step(action)
