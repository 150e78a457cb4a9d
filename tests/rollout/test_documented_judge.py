"""Judges as documented: an ordinary method asks the environment without awaiting it, an async one awaits it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import HELLO, Stage, task

from astune import AstuneProxy, JudgeBase, Task, Workflow
from astune.config.schema import AstuneConfig
from astune.schema import stepped
from astune.task_judge import load_judge

ECHO = f"{Path(__file__).with_name('rollout_worlds.py')}->Echo"


class Steps(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        reply = await proxy.achat(proxy.init_messages)
        if task.env_type != "no_env":
            await proxy.agym_step(reply)
        proxy.update_judge_input_dictionary(final_answer=reply["content"])


class Plain(JudgeBase):
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        environment = judge_input_dictionary["env"]
        assert environment.get_info() == ""
        return environment.evaluate() - environment.evaluate(sparse=False) / 2, True


class Awaiting(JudgeBase):
    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        environment = judge_input_dictionary["env"]
        return await environment.evaluate() - await environment.evaluate(sparse=False) / 2, True


@pytest.mark.parametrize("in_place", [nullcontext, stepped], ids=["run", "debugged"])
@pytest.mark.parametrize("judge", [Plain, Awaiting])
async def test_a_judge_asks_the_environment_in_its_own_manner(
    judge: type[JudgeBase], in_place: Callable[[], Any], stage: Callable[..., Stage]
) -> None:
    with in_place():
        [group] = await stage(Steps, judge=judge(AstuneConfig())).play([task(env_type=ECHO)])
    assert [episode.raw_reward for episode in group.episodes] == [0.5], group.dropped


@pytest.mark.parametrize(
    ("env_type", "answer", "verdict"),
    [(ECHO, "", (1.0, True)), ("no_env", "", (1.0, True)), ("no_env", "x", (0.0, False))],
)
async def test_the_documents_judge_runs_as_it_is(
    env_type: str, answer: str, verdict: tuple[float, bool], compat: Path, stage: Callable[..., Stage]
) -> None:
    config = AstuneConfig.model_validate({"task_judge": {"judge_protocol": f"{compat / 'judge.py'}->DocumentedJudge"}})
    playing = stage(Steps, judge=load_judge(config), replies=[HELLO])
    [group] = await playing.play([task(env_type=env_type, metadata={"answer": answer * 100})])
    assert group.dropped is None
    [reward] = [episode.reward for episode in group.episodes]
    assert reward is not None
    assert (reward.raw_reward, reward.is_success) == verdict
