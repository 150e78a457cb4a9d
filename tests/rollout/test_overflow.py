"""A prompt that does not fit ends an episode as truncated, whatever its agent and its judge make of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import HELLO, PLEASED, Stage, task

from astune import AstuneProxy, Task, Workflow
from astune.schema import ContextOverflow, JudgeError, SamplingParams

BROKEN = f"{Path(__file__).with_name('rollout_worlds.py')}->Broken"
USER = [{"role": "user", "content": "Hi"}]
SMALL = {"max_model_len": 100, "max_response_length_in_one_turn": 20}
LONG = [{"role": "user", "content": "long " * 200}]


class Overflows(Workflow):
    """Says something, then asks what does not fit."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> Any:
        await proxy.achat(USER)
        return await self.after(proxy)

    async def after(self, proxy: AstuneProxy) -> Any:
        return await proxy.achat(LONG)


class OverflowsAndFails(Overflows):
    async def after(self, proxy: AstuneProxy) -> None:
        try:
            await proxy.achat(LONG)
        except ContextOverflow as overflow:
            raise RuntimeError("the agent has nothing to say") from overflow


class ReadsTheEmptyAnswer(Overflows):
    empty_on_overflow = True

    async def after(self, proxy: AstuneProxy) -> None:
        (await proxy.achat(LONG))["content"].split()[0]


class ThenLosesItsService(Overflows):
    empty_on_overflow = True

    async def after(self, proxy: AstuneProxy) -> None:
        await proxy.achat(LONG)
        try:
            raise ConnectionRefusedError("the search service is down")
        except OSError as cause:
            raise RuntimeError("no results") from cause


class AsksForEver(Overflows):
    empty_on_overflow = True

    async def after(self, proxy: AstuneProxy) -> None:
        while True:
            await proxy.achat(LONG)


class SwallowsForEver(Overflows):
    async def after(self, proxy: AstuneProxy) -> None:
        while True:
            with suppress(ContextOverflow):
                await proxy.achat(LONG)


class OverflowsInItsWorld(Overflows):
    async def after(self, proxy: AstuneProxy) -> None:
        with suppress(ContextOverflow):
            await proxy.achat(LONG)
        await proxy.agym_step("x")


class ReadsTheAnswer:
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        return float(len(judge_input_dictionary["final_answer"])), True


class CannotTell:
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        raise JudgeError("the judge's service answers 500")


@pytest.mark.parametrize(
    ("workflow", "judge", "reward", "then"),
    [
        (Overflows, PLEASED, 1.0, ""),
        (Overflows, ReadsTheAnswer(), 0.0, "KeyError: 'final_answer'"),
        (Overflows, None, 0.0, ""),
        (OverflowsAndFails, ReadsTheAnswer(), 0.0, "RuntimeError: the agent has nothing to say"),
        (ReadsTheEmptyAnswer, PLEASED, 1.0, "IndexError"),
        (AsksForEver, PLEASED, 1.0, ""),
    ],
)
async def test_what_follows_from_an_overflow_ends_the_episode_as_truncated_and_is_not_retried(
    workflow: type[Workflow], judge: Any, reward: float, then: str, stage: Callable[..., Stage]
) -> None:
    playing = stage(workflow, judge=judge, **SMALL, max_attempts=2)
    [group] = await playing.play([task()])
    assert (group.dropped, group.failed_attempts) == (None, [])
    [episode] = group.episodes
    assert (episode.status, episode.raw_reward, episode.reward and episode.reward.is_success) == (
        "truncated",
        reward,
        reward == 1.0,
    )
    assert re.match(r"ContextOverflow: the prompt has \d{3} tokens, and the context ends at 100", episode.error or "")
    assert then in (episode.error or "")
    assert ("; then " in (episode.error or "")) == bool(then)


async def test_a_prompt_that_the_engine_refuses_as_too_long_is_an_overflow_too(stage: Callable[..., Stage]) -> None:
    def script(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        if len(prompt) > 100:
            raise ContextOverflow("the endpoint's context ends at 100")
        return HELLO

    [group] = await stage(Overflows, replies=script, max_attempts=2).play([task()])
    [episode] = group.episodes
    assert (episode.status, episode.error) == ("truncated", "ContextOverflow: the endpoint's context ends at 100")


async def test_a_judge_that_cannot_tell_after_an_overflow_drops_the_group_without_a_retry(
    stage: Callable[..., Stage],
) -> None:
    playing = stage(Overflows, judge=CannotTell(), **SMALL, max_attempts=2)
    [group] = await playing.play([task()])
    assert len(group.failed_attempts) == 1
    assert "ContextOverflow: the prompt has" in (group.dropped or "")
    assert "then the judge's service answers 500" in (group.dropped or "")


async def test_an_agents_service_that_fails_after_an_overflow_is_no_reward_of_0(stage: Callable[..., Stage]) -> None:
    [group] = await stage(ThenLosesItsService, **SMALL, max_attempts=2).play([task()])
    assert (len(group.failed_attempts), group.episodes) == (1, [])
    assert "no results" in (group.dropped or "")


async def test_an_environment_that_fails_after_an_overflow_is_an_error_and_retried(stage: Callable[..., Stage]) -> None:
    playing = stage(OverflowsInItsWorld, **SMALL, max_attempts=2)
    [group] = await playing.play([task(env_type=BROKEN)])
    assert [(episode.error or "")[:8] for episode in group.failed_attempts] == ["EnvError"] * 2


@pytest.mark.slow
async def test_an_agent_that_swallows_every_overflow_holds_nobody_up_and_is_truncated_at_its_deadline(
    stage: Callable[..., Stage],
) -> None:
    playing = stage(SwallowsForEver, **SMALL, episode_timeout_s=6.0)
    [group] = await playing.play([task()])
    assert group.dropped is None
    assert group.failed_attempts == []
    [episode] = group.episodes
    assert episode.status == "truncated"
    assert (episode.error or "").startswith("ContextOverflow")
    assert "took longer than 6 s" in (episode.error or "")
