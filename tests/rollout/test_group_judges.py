"""Episodes of a group that are judged together, when all of them have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rollout_stage import Stage

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.config.schema import AstuneConfig
from astune.schema import BudgetSpent, Reward
from astune.task_judge import GroupJudgeBase


class Numbered(Workflow):
    """Each episode registers how many were played before it; the one with number `fails` fails."""

    played = 0
    fails = -1

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        number = type(self).played
        type(self).played += 1
        if number == self.fails:
            raise ValueError("this one fails")
        await proxy.as_agentscope_model("agent").achat([{"role": "user", "content": f"Say {number}."}])
        proxy.update_judge_input_dictionary(number=number, final_answer=str(number), secret=object())
        return WorkflowOutput()


class Highest(GroupJudgeBase):
    """1 to the episode with the highest number of its group."""

    failure: Exception | None = None

    def compute_rewards(self, judge_input_dictionaries: list[dict[str, Any]]) -> Any:
        if self.failure is not None:
            raise self.failure
        numbers = [each["number"] for each in judge_input_dictionaries]
        assert all(each["env"] is None and "secret" not in each for each in judge_input_dictionaries)
        assert all(each["grouped_steps"][0][-1]["role"] == "assistant" for each in judge_input_dictionaries)
        return [(float(number == max(numbers)), number == max(numbers)) for number in numbers]


def judge(failure: Exception | None = None) -> Highest:
    found = Highest(AstuneConfig())
    found.failure = failure
    return found


def numbered(fails: int = -1) -> type[Numbered]:
    return type("Played", (Numbered,), {"played": 0, "fails": fails})


TASKS = [Task(task_id=f"task {n}", main_query="play") for n in range(3)]


async def test_a_group_is_judged_when_its_last_episode_has_ended(stage: Callable[..., Stage]) -> None:
    played = stage(numbered(), judge=judge())
    groups = await played.play(TASKS, num_repeat=4)
    for group in groups:
        rewards = {e.judge_inputs["number"]: e.reward.raw_reward for e in group.episodes if e.reward is not None}
        assert [rewards[number] for number in sorted(rewards)] == [0.0, 0.0, 0.0, 1.0]
        assert sorted(episode.status for episode in group.episodes) == ["failed"] * 3 + ["success"]
    assert len(played.watcher.finished) == 12
    assert all(episode.reward is not None for episode in played.watcher.finished)


async def test_a_group_with_a_failed_episode_is_not_judged_and_no_token_is_lost(stage: Callable[..., Stage]) -> None:
    played = stage(numbered(fails=1), judge=judge())
    before = played.engine.stats()
    [group] = await played.play(TASKS[:1], num_repeat=4)
    assert group.dropped is not None
    assert group.episodes == []
    assert sorted((e.error or "").split(":")[0] for e in group.failed_attempts) == ["JudgeError"] * 3 + [
        "WorkflowError"
    ]
    assert not played.watcher.finished
    assert played.pool.balance([group], played.engine.stats() - before).difference == 0


async def test_a_judge_that_fails_drops_its_group_and_gives_no_reward(stage: Callable[..., Stage]) -> None:
    [group] = await stage(numbered(), judge=judge(KeyError("number"))).play(TASKS[:1], num_repeat=2)
    assert group.dropped is not None
    assert "judge Highest on task task 0" in group.dropped
    assert all(episode.reward is None and episode.status == "error" for episode in group.failed_attempts)


async def test_a_budget_that_is_spent_stops_the_step_by_name(stage: Callable[..., Stage]) -> None:
    spent = judge(BudgetSpent("the helper model has used 20 tokens of its 15", hint="raise helper_model.budget_tokens"))
    with pytest.raises(BudgetSpent, match="used 20 tokens of its 15; raise"):
        await stage(numbered(), judge=spent).play(TASKS, num_repeat=2)


async def test_an_episode_alone_is_a_group_of_one() -> None:
    assert await judge().compute_reward({"number": 3, "env": None, "grouped_steps": [[{"role": "assistant"}]]}) == (
        1.0,
        True,
    )


class Sometimes(Workflow):
    """A seer speaks in every second episode of a group."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        for name in ("wolf", "farmer", "seer")[: 3 - proxy.repeat % 2]:
            await proxy.as_agentscope_model(name).achat([{"role": "user", "content": "Speak."}])
        return WorkflowOutput()


class OfTargets(GroupJudgeBase):
    """Farmers earn the episode's own reward."""

    misspelt = False

    def compute_rewards(self, judge_input_dictionaries: list[dict[str, Any]]) -> Any:
        per_target = {"wolf": 1.0, "sear" if self.misspelt else "seer": 0.5}
        return [Reward(raw_reward=0.0, is_success=False, per_target=per_target) for _ in judge_input_dictionaries]


async def test_a_target_that_is_silent_in_one_of_a_groups_episodes_is_no_unknown_one(
    stage: Callable[..., Stage],
) -> None:
    of_targets = OfTargets(AstuneConfig())
    [group] = await stage(Sometimes, judge=of_targets).play(TASKS[:1], num_repeat=2)
    assert group.dropped is None
    of_targets.misspelt = True
    [group] = await stage(Sometimes, judge=of_targets).play(TASKS[:1], num_repeat=2)
    assert "gave rewards to the targets ['sear', 'wolf']" in (group.dropped or "")
