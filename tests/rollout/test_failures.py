"""Failure has a type: each wrong thing becomes one clear error, a retry, and a dropped group; never a reward of 0."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from examples import some
from rollout_stage import HELLO, Stage, running_tasks, task

from astune import AgentScopeLearnProtocol, AstuneProxy, Environment, Task, Workflow, WorkflowOutput
from astune.config.imports import import_class
from astune.engine.base import EngineStats
from astune.rollout import INTERRUPTED
from astune.schema import ConfigError, EngineError, Reward, shown_value

WORLDS = Path(__file__).with_name("rollout_worlds.py")
USER = [{"role": "user", "content": "Hi"}]


def world(name: str) -> str:
    return f"{WORLDS}->{name}"


class Talks(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        await proxy.achat(proxy.init_messages)


class Steps(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = proxy.init_messages
        while True:
            reply = await proxy.achat(messages)
            observation, _, terminate, _ = await proxy.agym_step(reply)
            if terminate:
                return
            messages += [reply, {"role": "user", "content": observation}]


class StepsAndSwallows(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        reply = await proxy.achat(proxy.init_messages)
        try:
            await proxy.agym_step(reply)
        except Exception:
            proxy.update_judge_input_dictionary(final_answer="whatever")


class StepsSynchronously(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        reply = await proxy.achat(proxy.init_messages)
        proxy.gym_step(reply)


class NeverCalls(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        return None


class Raises(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        raise KeyError("answer")


class TrainsNobody(Workflow):
    trainable_targets = ("wolf",)

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.as_agentscope_model("Alice", target_tag="villager").achat(USER)


class ReturnsText(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> Any:
        await proxy.achat(USER)
        return "done"


class StepsWithoutWorld(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(USER)
        proxy.gym_step({"role": "assistant", "content": "x"})


class CancelsItself(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        raise asyncio.CancelledError


class RewardsNothing(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        await proxy.achat(USER)
        return WorkflowOutput(reward=math.nan)


class RewardsInWords(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        await proxy.achat(USER)
        return WorkflowOutput(reward="much")  # type: ignore[arg-type]


class EditsItsTask(Workflow):
    """Adds to the prompt and to the reference answer, in place."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        task.init_messages[-1]["content"] += " Hurry."
        task.metadata["answer"] = "other"
        await proxy.achat(task.init_messages)
        return WorkflowOutput(reward=1.0)


class MeasuresTooMuch(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        await proxy.achat(USER)
        return WorkflowOutput(reward=1.0, metrics={"error": 10**400})


class MeasuresWords(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        await proxy.achat(USER)
        return WorkflowOutput(reward=1.0, metrics={"mood": "good"})  # type: ignore[dict-item]


class Exits(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        sys.exit("done here")


class ExitsInAThread(Workflow):
    def execute(self, task: Task, proxy: AstuneProxy) -> None:
        sys.exit("done here")


class RaisesAnything(Workflow):
    """What ends a program, a coroutine or a loop, raised by the agent's own code."""

    raised: BaseException

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(USER)
        raise self.raised


class ForgetsToWait(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        reply: Any = proxy.achat(USER)
        try:
            reply["content"]
        finally:
            reply.close()


class TakesNothing(Talks):
    def __init__(self) -> None:
        return None


FAILURES: dict[str, tuple[type[Workflow], str, list[str]]] = {
    "the workflow raises": (Raises, "no_env", ["WorkflowError", "Raises on task t", "test_failures.py:", "KeyError"]),
    "the model is never called": (NeverCalls, "no_env", ["WorkflowError", "never called the model", "pass the proxy"]),
    "a forgotten await": (
        ForgetsToWait,
        "no_env",
        ["WorkflowError", "'coroutine' object is not", "call needs `await`"],
    ),
    "nothing is trained": (TrainsNobody, "no_env", ["WorkflowError", "['wolf']", "['Alice']", "target_tag"]),
    "it returns text": (ReturnsText, "no_env", ["WorkflowError", "returned str"]),
    "a step without environment": (StepsWithoutWorld, "no_env", ["WorkflowError", "env_type"]),
    "the environment fails at a step": (Steps, world("Broken"), ["EnvError", "the world is broken"]),
    "a swallowed failure counts": (StepsAndSwallows, world("Broken"), ["EnvError", "the world is broken"]),
    "a synchronous step fails": (StepsSynchronously, world("Broken"), ["EnvError", "the world is broken"]),
    "the environment cannot be made": (Steps, world("Unborn"), ["EnvError", "no world today"]),
    "there is no such environment": (Steps, "calculater", ["EnvError", "calculater"]),
    "the workflow cancels itself": (CancelsItself, "no_env", ["WorkflowError", "cancelled itself"]),
    "metrics that are no numbers": (MeasuresWords, "no_env", ["WorkflowError", "'mood': 'good'"]),
    "metrics beyond all numbers": (MeasuresTooMuch, "no_env", ["WorkflowError", "'error': 1000", "named numbers"]),
    "sys.exit in the workflow": (Exits, "no_env", ["WorkflowError", "SystemExit", "done here"]),
    "sys.exit in a thread": (ExitsInAThread, "no_env", ["WorkflowError", "SystemExit", "done here"]),
    "the workflow cannot be made": (TakesNothing, "no_env", ["WorkflowError", "TakesNothing could not be made"]),
    "a reward in words": (RewardsInWords, "no_env", ["WorkflowError", "'much'", "finite"]),
    "an environment without a beginning": (Steps, world("Formless"), ["EnvError", "get_init_state", "NoneType"]),
    "a reward that is no number": (RewardsNothing, "no_env", ["WorkflowError", "nan", "finite"]),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_a_failing_episode_is_retried_then_its_group_dropped_with_the_cause(
    what: str, stage: Callable[..., Stage]
) -> None:
    workflow, env_type, expected = FAILURES[what]
    playing = stage(workflow, max_attempts=2)
    before = playing.engine.stats()
    [group] = await playing.play([task(env_type=env_type)], num_repeat=2)
    assert group.episodes == []
    assert [(episode.repeat, episode.attempt) for episode in group.failed_attempts].count((0, 2)) == 1
    assert len(group.failed_attempts) == len(playing.watcher.failed) == 4
    for episode in group.failed_attempts:
        assert (episode.status, episode.reward) == ("error", None)
        assert math.isnan(episode.raw_reward)
        assert all(part in (episode.error or "") for part in expected), episode.error
    assert group.dropped is not None
    assert group.dropped.startswith("group incomplete: ")
    assert playing.pool.balance([group], playing.engine.stats() - before).difference == 0
    assert not playing.engine.open_sessions


NOBODY = Reward(raw_reward=0.5, is_success=True, per_target={"wolf": 1.0})
WRITTEN_WRONGLY = Reward(raw_reward=0.5, is_success=True, per_target={"agnet": 1.0})
TOO_MANY_TURNS = Reward(raw_reward=0.5, is_success=True, per_turn=[1.0, 0.0])


class Unshown:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Judging:
    """A judge that says what it is told to."""

    def __init__(self, verdict: Any) -> None:
        self.verdict = verdict

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Any:
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        return self.verdict


@pytest.mark.parametrize(
    "verdict",
    [
        None,
        1.0,
        (1.0,),
        (None, True),
        (math.nan, False),
        (math.inf, True),
        (1e308, True),
        (-1.1e6, True),
        (-(10**400), True),
        SystemExit(0),
        StopIteration("out"),
        GeneratorExit(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        ("1", True),
        (1.0, "False"),
        (True, 0.7),
        (10**5000, True),
        Unshown(),
        (1.0, math.nan),
        (1, 2, 3),
        ValueError("oh"),
        NOBODY,
        WRITTEN_WRONGLY,
        TOO_MANY_TURNS,
    ],
    ids=lambda verdict: shown_value(verdict)[:40],
)
async def test_a_judge_that_gives_no_reward_is_an_error(verdict: Any, stage: Callable[..., Stage]) -> None:
    [group] = await stage(Talks, judge=Judging(verdict)).play([task()])
    [episode] = group.failed_attempts
    assert (episode.error or "").startswith("JudgeError: judge Judging on task t")
    assert episode.reward is None


class FailsFirst(Judging):
    """A judge whose every first answer to an episode is of no use."""

    first = True

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Any:
        self.first = not self.first
        return (1.0, True) if self.first else super().compute_reward(judge_input_dictionary)


@pytest.mark.parametrize("verdict", [None, ValueError("oh"), SystemExit(0)], ids=repr)
async def test_a_judge_that_fails_once_is_asked_again_about_the_same_episode(
    verdict: Any, stage: Callable[..., Stage]
) -> None:
    [group] = await stage(Talks, judge=FailsFirst(verdict)).play([task()])
    assert group.failed_attempts == []
    assert group.episodes[0].raw_reward == 1.0


class Misspells:
    """A judge that reads a key which nobody wrote."""

    def __init__(self, of_task: bool) -> None:
        self.of_task = of_task

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Any:
        return (judge_input_dictionary["task_core_arg"].task.metadata if self.of_task else judge_input_dictionary)["no"]


@pytest.mark.parametrize("of_task", [False, True])
async def test_a_judge_that_misses_a_key_is_told_which_are_there(of_task: bool, stage: Callable[..., Stage]) -> None:
    [group] = await stage(Talks, judge=Misspells(of_task)).play([task(metadata={"answer": "7", "limit": 3})])
    error = group.failed_attempts[0].error or ""
    assert "KeyError: 'no'" in error
    assert "Its dictionary has env, task_core_arg, grouped_steps; the task's metadata has answer, limit" in error


class TwoSides(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        for name in ("wolf", "villager"):
            await proxy.as_agentscope_model(name).achat([*USER, {"role": "user", "content": name}])


@pytest.mark.parametrize(
    ("named", "status"),
    [(("wolf", "vilager"), "error"), (("wolf", "villager", "seer"), "success"), (("wolf",), "success")],
)
async def test_a_target_that_nobody_knows_is_an_error_where_a_trained_one_has_no_reward(
    named: tuple[str, ...], status: str, stage: Callable[..., Stage]
) -> None:
    reward = Reward(raw_reward=0.5, is_success=True, per_target=dict.fromkeys(named, 1.0))
    [group] = await stage(TwoSides, judge=Judging(reward)).play([task()])
    [episode] = group.failed_attempts[-1:] or group.episodes
    assert episode.status == status
    assert status != "error" or "'vilager', 'wolf'" in (episode.error or "")


async def test_a_judges_mistake_is_told_with_its_line_and_without_advice_about_deadlines(
    stage: Callable[..., Stage],
) -> None:
    [group] = await stage(Talks, judge=Judging(ValueError("oh"))).play([task()])
    [episode] = group.failed_attempts[-1:]
    assert re.search(r"\(\S*test_failures\.py:\d+\): ValueError: oh", episode.error or "")
    assert "call_timeout_s" not in (episode.error or "")


async def test_what_an_agent_changes_in_its_task_stays_in_its_episode(stage: Callable[..., Stage]) -> None:
    given = task(init_messages=[{"role": "user", "content": "Say it."}], metadata={"answer": "this"})
    [group] = await stage(EditsItsTask).play([given], num_repeat=3)
    assert [episode.forest.nodes[0].content for episode in group.episodes] == ["Say it. Hurry."] * 3
    assert given.init_messages == [{"role": "user", "content": "Say it."}]
    assert [episode.task.metadata for episode in group.episodes] == [{"answer": "this"}] * 3


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ((0.25, 0), "failed"),
        (Reward(raw_reward=2, is_success=True), "success"),
        (Reward(raw_reward=2, is_success=True, per_target={"agent": 1, "wolf": 0}), "success"),
        (Reward(raw_reward=2, is_success=True, per_turn=[1]), "success"),
    ],
)
async def test_both_spellings_of_a_reward_are_understood(
    verdict: Any, status: str, stage: Callable[..., Stage]
) -> None:
    [group] = await stage(Talks, judge=Judging(verdict)).play([task()])
    assert [episode.status for episode in group.episodes] == [status]


async def test_without_judge_and_reward_the_setting_is_named(stage: Callable[..., Stage]) -> None:
    [group] = await stage(Talks, judge=None).play([task()])
    assert "task_judge.judge_protocol" in (group.dropped or "")


async def test_an_engine_that_fails_is_an_error_even_when_swallowed(stage: Callable[..., Stage]) -> None:
    class Swallows(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await proxy.achat(USER)
            try:
                await proxy.achat([*USER, *USER])
            except EngineError:
                return

    replies = iter([HELLO])
    [group] = await stage(Swallows, replies=lambda *_: next(replies)).play([task()])
    assert "model call 2" in (group.dropped or "")


async def test_a_retry_gets_a_fresh_environment_and_a_seed_of_its_own(stage: Callable[..., Stage]) -> None:
    playing = stage(Steps, max_attempts=2, multi_turn={"max_steps": 2})
    [group] = await playing.play([task(env_type=world("BrokenOnce"))])
    assert group.dropped is None
    [failed], [episode] = group.failed_attempts, group.episodes
    assert (failed.attempt, episode.attempt) == (1, 2)
    assert failed.episode_id != episode.episode_id
    assert failed.seed != episode.seed


async def test_one_failing_task_leaves_the_others_alone_and_in_order(stage: Callable[..., Stage]) -> None:
    class FailsOnB(Talks):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await proxy.achat(USER)
            if task.task_id == "b":
                raise RuntimeError("b")

    groups = await stage(FailsOnB, max_env_worker=2).play([task(name) for name in "abc"], num_repeat=3)
    assert [group.task.task_id for group in groups] == ["a", "b", "c"]
    assert [group.dropped is None for group in groups] == [True, False, True]
    assert [episode.repeat for episode in groups[2].episodes] == [0, 1, 2]


class Hangs(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(USER)
        await asyncio.Event().wait()


class SwallowsCancellation(Workflow):
    """As AgentScope does: takes a cancellation for its user's interruption and talks on."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(USER)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await proxy.achat([*USER, *USER])


class HangsInAThread(Workflow):
    release = threading.Event()

    def execute(self, task: Task, proxy: AstuneProxy) -> None:
        proxy.chat(USER)
        self.release.wait(60)


@pytest.mark.parametrize("workflow", [Hangs, SwallowsCancellation, HangsInAThread])
async def test_an_episode_that_hangs_ends_at_its_deadline(
    workflow: type[Workflow], stage: Callable[..., Stage]
) -> None:
    HangsInAThread.release.clear()
    playing = stage(workflow, episode_timeout_s=0.2)
    [group] = await playing.play([task()])
    assert "DeadlineExceeded" in (group.dropped or "")
    assert "rollout.episode_timeout_s" in (group.dropped or "")
    assert "waited for its workflow" in (group.dropped or "")
    assert running_tasks() == []
    HangsInAThread.release.set()


class CallsFromAThread(Workflow):
    def execute(self, task: Task, proxy: AstuneProxy) -> None:
        proxy.chat(USER)


class ForgetsATask(Workflow):
    forgotten: ClassVar[list[asyncio.Task[Any]]] = []

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        async def swallows() -> None:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await proxy.achat([*USER, *USER])

        await proxy.achat(USER)
        self.forgotten.append(asyncio.create_task(swallows()))
        await asyncio.sleep(0)
        return WorkflowOutput(reward=1.0)


@pytest.mark.parametrize("workflow", some([CallsFromAThread, ForgetsATask], 1))
async def test_no_call_outlives_its_episode(workflow: type[Workflow], stage: Callable[..., Stage]) -> None:
    calls = 0

    async def hangs(*_: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls > 1 or workflow is CallsFromAThread:
            await asyncio.Event().wait()
        return HELLO

    ForgetsATask.forgotten.clear()
    playing = stage(workflow, replies=hangs, episode_timeout_s=2.0 if workflow is CallsFromAThread else 60.0)
    [group] = await playing.play([task()])
    assert (calls, len(group.episodes)) == ((1, 0) if workflow is CallsFromAThread else (2, 1))
    await asyncio.gather(*ForgetsATask.forgotten, return_exceptions=True)
    assert running_tasks() == []


async def test_a_model_call_that_hangs_ends_at_its_deadline(stage: Callable[..., Stage]) -> None:
    async def never(*_: Any) -> list[int]:
        await asyncio.Event().wait()
        return HELLO

    [group] = await stage(Talks, replies=never, call_timeout_s=0.1).play([task()])
    assert "model call 1 of episode train-000001-t-000-1 took longer than 0.1 s" in (group.dropped or "")


@pytest.mark.parametrize("workflow", [Steps, StepsSynchronously])
async def test_an_environment_that_hangs_ends_at_its_deadline(
    workflow: type[Workflow], stage: Callable[..., Stage]
) -> None:
    stuck: Any = import_class(world("Stuck"), key="env_type", base=Environment)
    for call_timeout_s in (0.2, 2.0, 20.0):  # until one is long enough to create it
        stuck.release.clear()
        [group] = await stage(workflow, call_timeout_s=call_timeout_s).play([task(env_type=world("Stuck"))])
        stuck.release.set()
        if "creating the environment" not in (group.dropped or ""):
            break
    assert f"step 1 of the environment of task t took longer than {call_timeout_s:g} s" in (group.dropped or "")


async def test_a_judge_that_hangs_ends_at_its_deadline(stage: Callable[..., Stage]) -> None:
    class Ponders:
        async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
            await asyncio.Event().wait()
            return 1.0, True

    [group] = await stage(Talks, judge=Ponders(), call_timeout_s=0.1).play([task()])
    assert "judge Ponders on task t took longer than 0.1 s" in (group.dropped or "")


async def test_a_step_out_of_time_keeps_the_groups_that_are_complete(stage: Callable[..., Stage]) -> None:
    class HangsOnB(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await proxy.achat(USER)
            if task.task_id == "b":
                await asyncio.Event().wait()

    for step_timeout_s in (0.3, 3.0, 30.0):  # until one is long enough for `a`
        playing = stage(HangsOnB, step_timeout_s=step_timeout_s)
        before = playing.engine.stats()
        done, late = await playing.play([task("a"), task("b")])
        if done.dropped is None:
            break
    assert done.dropped is None
    assert late.dropped == f"step out of time: {INTERRUPTED}"
    balance = playing.pool.balance([done, late], playing.engine.stats() - before)
    assert balance.difference == 0
    assert balance.dropped[INTERRUPTED] == len(HELLO) + 1
    assert running_tasks() == []


async def test_an_episode_whose_world_closes_beyond_the_deadline_stays_in_the_books(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow: Any = import_class(world("SlowToClose"), key="env_type", base=Environment)
    for step_timeout_s in (0.3, 3.0, 10.0):  # until one is long enough to take a step in
        monkeypatch.setattr(slow, "seconds", 2 * step_timeout_s)
        playing = stage(Steps, step_timeout_s=step_timeout_s, multi_turn={"max_steps": 1})
        before = playing.engine.stats()
        [late] = await playing.play([task(env_type=world("SlowToClose"))])
        balance = playing.pool.balance([late], playing.engine.stats() - before)
        if balance.sampled:
            break
    assert late.dropped == f"step out of time: {INTERRUPTED}"
    assert (balance.difference, balance.dropped[INTERRUPTED]) == (0, balance.sampled)
    assert balance.sampled > 0
    assert running_tasks() == []


@pytest.mark.parametrize("workflow", [Hangs, SwallowsCancellation])
async def test_cancelling_leaves_nothing_running_and_tells_of_what_was_in_flight(
    workflow: type[Workflow], stage: Callable[..., Stage]
) -> None:
    playing = stage(workflow, max_env_worker=2)
    step = asyncio.ensure_future(playing.play([task("a"), task("b"), task("c")]))
    while playing.engine.stats().sampled_tokens < 2 * (len(HELLO) + 1):  # noqa: ASYNC110
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert running_tasks() == []
    assert [episode.error for episode in playing.watcher.failed] == [INTERRUPTED, INTERRUPTED]
    assert [episode.forest.sampled_tokens() for episode in playing.watcher.failed] == [len(HELLO) + 1] * 2
    assert playing.watcher.started == ["train-000001-a-000-1", "train-000001-b-000-1"]
    assert not playing.engine.open_sessions


async def test_an_agentscope_agent_that_is_cancelled_ends_too(stage: Callable[..., Stage]) -> None:
    from agentscope.agent import ReActAgent
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import Msg

    class Talkative(AgentScopeLearnProtocol):
        async def agentscope_execute(self, init_messages: Any, beyondagent_proxy: Any, config: Any) -> Any:
            agent = ReActAgent("a", "S", beyondagent_proxy, OpenAIChatFormatter())
            while True:
                await agent(Msg("user", "on", "user"))

    async def hangs_later(*_: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls > 2:
            await asyncio.Event().wait()
        return HELLO

    for episode_timeout_s in (0.5, 5.0, 30.0):  # until one is long enough for two calls
        calls = 0
        [group] = await stage(Talkative, replies=hangs_later, episode_timeout_s=episode_timeout_s).play([task()])
        if calls == 3:
            break
    assert "waited for its model" in (group.dropped or "")
    assert calls == 3
    assert running_tasks() == []


async def test_an_observer_that_fails_ends_the_step(stage: Callable[..., Stage]) -> None:
    playing = stage(Talks)

    def disk_full(episode: Any) -> None:
        raise OSError(28, "No space left on device")

    playing.watcher.on_finished = disk_full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space left"):
        await playing.play([task("a"), task("b")])
    assert running_tasks() == []


def test_a_workflow_without_its_method_is_refused_by_name(stage: Callable[..., Stage]) -> None:
    class Forgot(AgentScopeLearnProtocol):
        pass

    with pytest.raises(ConfigError, match="Forgot has no method agentscope_execute"):
        stage(Forgot)


async def test_truncated_sampling_is_refused_for_training(stage: Callable[..., Stage]) -> None:
    playing = stage(Talks, top_p=0.9)
    with pytest.raises(ConfigError, match="top_p"):
        await playing.play([task()])


async def test_an_engine_that_never_settles_is_an_error_rather_than_books_that_do_not_balance(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage(Talks)
    monkeypatch.setattr("astune.rollout.pool._ENGINE_SETTLES_S", 0.05)
    monkeypatch.setattr(made.engine, "stats", lambda: EngineStats(running=2, waiting=1))
    with pytest.raises(EngineError, match="2 calls running and 1 waiting"):
        await made.play([task()])


@pytest.mark.parametrize(
    "raised",
    [SystemExit(0), StopAsyncIteration(), GeneratorExit(), BaseException("x")],
    ids=repr,
)
async def test_what_an_agent_raises_ends_its_episode_alone(raised: BaseException, stage: Callable[..., Stage]) -> None:
    workflow = type("Raises", (RaisesAnything,), {"raised": raised})
    async with asyncio.timeout(10):
        [group] = await stage(workflow).play([task()])
    [episode] = group.failed_attempts
    assert type(raised).__name__ in (episode.error or "")
    assert "test_failures.py" in (episode.error or "")
