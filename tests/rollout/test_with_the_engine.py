"""Episodes over the in-process engine and a tiny model: real sampling, real cancellation, real determinism."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import PLEASED, Watcher, running_tasks, task

from astune import AstuneProxy, Task, Workflow
from astune.config.schema import AstuneConfig
from astune.engine.local.in_process import InProcessEngine
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup

pytestmark = pytest.mark.slow


class Chats(Workflow):
    """As many turns as the task's id says, at least one."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = proxy.init_messages
        for turn in range(1 + int(task.task_id) % 3):
            reply = await proxy.achat(messages)
            messages += [reply, {"role": "user", "content": f"turn {turn}"}]


def new_pool(
    folder: Path, workflow: type[Workflow] = Chats, *, deterministic: bool, **rollout: Any
) -> tuple[RolloutPool, InProcessEngine, Watcher]:
    settings = {"max_model_len": 512, "max_response_length_in_one_turn": 24, "max_attempts": 1} | rollout
    config = AstuneConfig.model_validate(
        {"rollout": settings, "engine": {"kv_cache_gb": 0.05, "max_batch_size": 8}, "deterministic": deterministic}
    )
    engine = InProcessEngine.load(
        folder,
        model=config.model,
        engine=config.engine,
        max_model_len=config.rollout.max_model_len,
        deterministic=deterministic,
    )
    watcher = Watcher()
    return RolloutPool(engine, load_renderer(folder), workflow, PLEASED, config, watcher), engine, watcher


def sampled(groups: list[EpisodeGroup]) -> list[Any]:
    assert [group.dropped for group in groups] == [None] * len(groups)
    return [
        [(prompt, completion) for _, prompt, completion in episode.forest.replay()]
        for group in groups
        for episode in group.episodes
    ]


class AsksSeveral(Workflow):
    """Three helpers of two turns at once, in tasks and a thread, each at its own pace; then a summary."""

    hurry = random.Random()

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        async def helper(number: int) -> str:
            model = proxy.as_agentscope_model(f"helper {number}")
            messages = [{"role": "user", "content": f"task {task.task_id}"}]  # a node that all of them read
            for _ in range(2):
                await asyncio.sleep(self.hurry.random() * 0.02)
                messages.append(await model.achat(messages))
                messages.append({"role": "user", "content": "more"})
            return str(messages[-2]["content"])

        parts = [asyncio.ensure_future(helper(number)) for number in range(2)]
        parts.append(asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(helper(2)))))
        content = "".join(await asyncio.gather(*parts))
        await proxy.achat([{"role": "user", "content": content}])


@pytest.mark.parametrize("workflow", [Chats, AsksSeveral])
async def test_deterministic_episodes_are_equal_to_the_last_bit_whatever_the_timing(
    tiny_folder: Path, workflow: type[Workflow]
) -> None:
    runs: list[list[EpisodeGroup]] = []
    for max_env_worker in (16, 5, 1):
        pool, engine, _ = new_pool(tiny_folder, workflow, deterministic=True, max_env_worker=max_env_worker)
        tasks = [task(str(i)) for i in range(3)]
        groups = await pool.run_groups(tasks, step=1, split="train", num_repeat=2, temperature=1.0)
        assert pool.balance(groups, engine.stats()).difference == 0
        runs.append(groups)
        await engine.aclose()
    assert sampled(runs[0]) == sampled(runs[1]) == sampled(runs[2])
    first, *others = [[episode.forest for group in groups for episode in group.episodes] for groups in runs]
    assert others == [first, first]


async def test_the_recorded_logprobs_are_finite_and_every_token_is_booked(tiny_folder: Path) -> None:
    pool, engine, _ = new_pool(tiny_folder, deterministic=False)
    before = engine.stats()
    groups = await pool.run_groups([task("1"), task("2")], step=1, split="train", num_repeat=4, temperature=1.0)
    balance = pool.balance(groups, engine.stats() - before)
    assert balance.difference == 0
    assert balance.trained == balance.sampled > 0
    assert all(
        -50 < value <= 0 for calls in sampled(groups) for _, completion in calls for value in completion.logprobs
    )
    await engine.aclose()


async def test_a_step_cut_by_its_deadline_balances_with_the_calls_that_were_cancelled(tiny_folder: Path) -> None:
    pool, engine, _ = new_pool(
        tiny_folder,
        deterministic=False,
        step_timeout_s=3.0,
        max_response_length_in_one_turn=480,
    )
    before = engine.stats()
    groups = await pool.run_groups(
        [task(str(i)) for i in range(16)], step=1, split="train", num_repeat=8, temperature=1.0
    )
    balance = pool.balance(groups, engine.stats() - before)
    assert balance.difference == 0
    assert balance.dropped["cancelled call"] > 0
    assert (groups[-1].dropped or "").startswith("step out of time")
    assert running_tasks() == []
    await engine.aclose()


async def test_ctrl_c_in_the_middle_of_sampling_leaves_an_engine_that_can_go_on(tiny_folder: Path) -> None:
    pool, engine, watcher = new_pool(tiny_folder, deterministic=False, max_response_length_in_one_turn=480)
    step = asyncio.ensure_future(pool.run_groups([task("0")], step=1, split="train", num_repeat=8, temperature=1.0))
    while engine.stats().sampled_tokens == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert len(watcher.failed) == 8
    assert running_tasks() == []
    [group] = await pool.run_groups([task("0")], step=2, split="train", num_repeat=1, temperature=1.0)
    assert group.dropped is None
    await engine.aclose()
