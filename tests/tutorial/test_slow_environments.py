"""The tutorials' agents with an environment that takes its time: no episode waits for another's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tutorial_stage import Play

from astune import Environment, EnvState, EnvStep
from astune.schema import Task

CONFS = [f"example_{name}/{name}.yaml" for name in ("calculator", "frozen_lake", "appworld")]


class Meeting(Environment):
    """Its step is over when another instance's has begun as well."""

    both_are_there = threading.Barrier(2)

    def get_init_state(self) -> EnvState:
        return EnvState([{"role": "user", "content": "Is anybody here?"}])

    def step(self, action: dict[str, Any]) -> EnvStep:
        self.both_are_there.wait(timeout=20)
        return EnvStep([], reward=1.0, is_terminated=True)

    def evaluate(self, sparse: bool = True) -> float:
        return 1.0


@pytest.mark.parametrize("conf", CONFS)
async def test_the_steps_of_two_episodes_overlap(conf: str, play: Play):
    task = Task(task_id="meeting", main_query="?", env_type=f"{__file__}->Meeting")
    group = await play(conf, task, ["Yes."])
    assert [(episode.status, episode.raw_reward) for episode in group.episodes] == [("success", 1.0)] * 2
