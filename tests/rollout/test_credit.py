"""Credit between agents: roles that swap seats within a group, and what an agent of a team added."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollout_stage import Stage

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.algorithm import DrGRPO, advantages_of
from astune.env_service.built_in import environment_class
from astune.scoring.difference import difference_rewards


class Auction(Workflow):
    """Two seats, of which the first one wins whoever sits there: a buyer is to be compared over both seats."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        roles = ["buyer", "seller"] if proxy.repeat % 2 == 0 else ["seller", "buyer"]
        for seat, role in enumerate(roles, 1):
            await proxy.as_agentscope_model(f"seat {seat}", role).achat([{"role": "user", "content": role}])
        return WorkflowOutput(reward=1.0, per_target={roles[0]: 1.0, roles[1]: 0.0})


async def test_a_group_swaps_seats_and_compares_a_role_over_all_of_them(stage: Callable[..., Stage]) -> None:
    """buyer   seat 1 2 1 2   reward 1 0 1 0   ->   0.5 -0.5 0.5 -0.5     seller the other way round."""
    [group] = await stage(Auction, judge=None).play([Task(task_id="t", main_query="play")], num_repeat=4)
    [advantages] = advantages_of(DrGRPO(), [group])
    found = []
    for episode, own in zip(group.episodes, advantages, strict=True):
        assert isinstance(own, dict)
        found.append({episode.target_of(node.agent): own[node.node_id] for node in episode.trained_messages})
    assert found == [{"buyer": 0.5, "seller": -0.5}, {"buyer": -0.5, "seller": 0.5}] * 2
    assert [[*episode.targets.values()].index("buyer") for episode in group.episodes] == [0, 1, 0, 1]


def test_an_agent_earns_what_the_team_did_not_get_without_it() -> None:
    moves = [("Ann", "box"), ("Bob", "box"), ("Eve", "talk"), ("Ann", "box")]

    def carried(played: Sequence[tuple[str, str]]) -> float:
        return float(sum(move == "box" for _, move in played))

    assert difference_rewards(carried, moves, "wait") == {"Ann": 2.0, "Bob": 1.0, "Eve": 0.0}


def test_an_environment_is_played_again_without_each_agent() -> None:
    """Two walk over one lake by turns; neither comes to the gift without the other."""
    task = Task(task_id="lake", main_query="?", metadata={"map": ["SFFF", "FFFF", "FFFF", "FFFG"], "max_turns": 9})
    lake = environment_class("frozenlake", asked_by="the test")

    def outcome(played: Sequence[tuple[str, str | None]]) -> float:
        environment = lake(task, 5)
        environment.get_init_state()
        for _, move in played:
            if move is not None and environment.step({"role": "assistant", "content": move}).is_terminated:
                break
        return environment.evaluate()

    walked: list[tuple[str, str | None]] = [("Eve", "up"), *[("Ann", "down"), ("Bob", "right")] * 3]
    assert outcome(walked) == 1.0
    assert difference_rewards(outcome, walked, None) == {"Eve": 0.0, "Ann": 1.0, "Bob": 1.0}
