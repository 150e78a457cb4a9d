"""Several agents in one episode: roles that are dealt late, rewards that a game gives its teams, and the same deal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest
from rollout_stage import Stage

from astune import AstuneProxy, Task, Workflow, WorkflowOutput


class Game(Workflow):
    """Two players; who is the wolf is dealt after they were made."""

    trainable_targets = ("wolf",)
    output: ClassVar[WorkflowOutput]

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        players = {name: proxy.as_agentscope_model(name) for name in ("Ann", "Bob")}
        wolf = proxy.rng.choice(sorted(players))
        for name, player in players.items():
            proxy.tag(name, "wolf" if name == wolf else "villager")
            await player.achat([{"role": "user", "content": f"You are {name}."}])
        return self.output


class TaggedTooLate(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        ann = proxy.as_agentscope_model("Ann")
        await ann.achat([{"role": "user", "content": "Hi"}])
        proxy.tag("Ann", "Ann")
        proxy.tag("Ann", "wolf")
        return WorkflowOutput(reward=1.0)


def giving(output: WorkflowOutput) -> type[Game]:
    return type("Dealt", (Game,), {"output": output})


def task(name: str) -> Task:
    return Task(task_id=name, main_query="play")


async def test_a_group_plays_the_same_deal_and_only_who_was_dealt_the_trained_role_is_trained(
    stage: Callable[..., Stage],
) -> None:
    workflow = giving(WorkflowOutput(reward=0.5, per_target={"wolf": 1.0, "villager": 0.0}))
    groups = await stage(workflow, judge=None).play([task(f"game {n}") for n in range(8)], num_repeat=4)
    wolves = []
    for group in groups:
        trained = [
            {node.agent for node in episode.forest.nodes if node.sampled and node.trainable}
            for episode in group.episodes
        ]
        assert trained == [trained[0]] * 4, "one deal a group"
        wolves += trained[0]
        for episode in group.episodes:
            assert {episode.targets[agent] for agent in trained[0]} == {"wolf"}
            assert set(episode.targets.values()) == {"wolf", "villager"}
            assert episode.reward is not None
            assert episode.reward.per_target == {"wolf": 1.0, "villager": 0.0}
    assert set(wolves) == {"Ann", "Bob"}, "tasks have deals of their own"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (WorkflowOutput(per_target={"wolf": 1.0}), "returned per_target without a reward"),
        (WorkflowOutput(reward=1.0, per_target={"wolff": 1.0}), "gave rewards to the targets ['wolff']"),
        (WorkflowOutput(reward=1.0, per_target={"wolf": float("nan")}), "a reward is a finite number"),
        (WorkflowOutput(reward=1.0, per_target=cast(Any, [1.0])), "per_target: Input should be a valid dictionary"),
        (WorkflowOutput(reward=1.0, per_target=cast(Any, "wolf")), "per_target: Input should be a valid dictionary"),
        (WorkflowOutput(reward=1.0, per_target=cast(Any, 3)), "per_target: Input should be a valid dictionary"),
        (WorkflowOutput(reward=1.0, is_success=cast(Any, 0.7)), "is_success: Input should be a valid boolean"),
        (WorkflowOutput(reward=1.0, is_success=cast(Any, "maybe")), "is_success: Input should be a valid boolean"),
        (WorkflowOutput(reward=1.0, metadata=cast(Any, [1])), "metadata: Input should be a valid dictionary"),
    ],
)
async def test_rewards_of_teams_that_cannot_be_trained_on_are_errors(
    stage: Callable[..., Stage], output: WorkflowOutput, error: str
) -> None:
    [group] = await stage(giving(output), judge=None).play([task("t")])
    [episode] = group.failed_attempts
    assert error in (episode.error or "")


async def test_an_agent_that_has_spoken_keeps_its_tag(stage: Callable[..., Stage]) -> None:
    [group] = await stage(TaggedTooLate, judge=None).play([task("t")])
    [episode] = group.failed_attempts
    assert "'Ann' has spoken already" in (episode.error or "")
    assert "test_teams.py" in (episode.error or "")
