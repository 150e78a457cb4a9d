"""The tutorial of a planner and a solver: who reads what, what both earn, and who is trained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tutorial_stage import Play

from astune.config.schema import AstuneConfig
from astune.schema import Task
from tutorial.example_planner_solver.planner_solver import PlannerAndSolver

CONF = "example_planner_solver/planner_solver.yaml"
TASK = Task(
    task_id="sum", main_query="Eve has 20 nuts and finds 14. How many?", env_type="calculator", metadata={"answer": 34}
)


async def test_the_solver_reads_the_plan_and_not_the_problem(play: Play):
    group = await play(CONF, TASK, ["add 20 and 14\nI think", "<calc>20+14</calc>", r"\boxed{34}"])
    for episode in group.episodes:
        assert (episode.status, episode.raw_reward) == ("success", 1.0)
        read = {
            one.agent: [str(episode.forest.nodes[s.node_id].content) for s in one.spans] for one in episode.timelines
        }
        assert any("nuts" in text for text in read["planner"])
        assert not any("nuts" in text for text in read["solver"])
        assert "add 20 and 14" in read["solver"]
        assert r"\boxed{34}" in read["solver"]


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        (["add 20 and 15", "<calc>20+15</calc>", r"\boxed{35}"], 0.1),
        (["", "<calc>20+14</calc>", r"\boxed{3}"], 0.5),
        (["add 20 and 14", "well"], 0.0),
    ],
)
async def test_both_earn_what_the_team_earns(replies: list[str], reward: float, play: Play):
    group = await play(CONF, TASK, replies)
    assert {episode.raw_reward for episode in group.episodes} == {reward}
    trained = {node.agent for node in group.episodes[0].trained_messages}
    assert trained == {"planner", "solver"}


class SolverAlone(PlannerAndSolver):
    def __init__(self, config: AstuneConfig, trained: Sequence[str]) -> None:
        super().__init__(config, trained=[name for name in trained if name != "planner"])


async def test_one_of_them_can_be_trained_alone(play: Play):
    group = await play(CONF, TASK, ["add 20 and 14", r"\boxed{34}"], workflow=SolverAlone)
    assert {node.agent for node in group.episodes[0].trained_messages} == {"solver"}
