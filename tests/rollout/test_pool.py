"""Many episodes at once: order, limits, seeds, sessions, the ends of an episode, and the books of a whole step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_stage import HELLO, Stage, build_stage, running_tasks, task

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.config.schema import AstuneConfig
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.schema import ContextOverflow, EngineError, SamplingParams, WorkflowError
from astune.task_judge import load_judge

ECHO = f"{Path(__file__).with_name('rollout_worlds.py')}->Echo"


class Talks(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(proxy.init_messages)


class Steps(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = proxy.init_messages
        terminate = False
        while not terminate:
            reply = await proxy.achat(messages)
            observation, _, terminate, _ = await proxy.agym_step(reply)
            messages += [reply, {"role": "user", "content": observation}]


async def test_episodes_come_in_the_order_of_tasks_and_repeats(stage: Callable[..., Stage]) -> None:
    async def slower_first(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        for _ in range(40 - 10 * int(session.split("-")[3])):
            await asyncio.sleep(0)
        return HELLO

    playing = stage(Talks, replies=slower_first)
    groups = await playing.play([task("a"), task("b")], num_repeat=4)
    assert [[(e.task.task_id, e.repeat) for e in group.episodes] for group in groups] == [
        [(name, repeat) for repeat in range(4)] for name in "ab"
    ]
    assert [episode.repeat for episode in playing.watcher.finished][:2] == [3, 3]


async def test_kept_episodes_are_not_played_again_and_their_tokens_count_once(stage: Callable[..., Stage]) -> None:
    class FailsFirst(Talks):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await super().execute(task, proxy)
            if proxy.repeat == 1 and len(tried) == 0:
                tried.append(1)
                raise ValueError("planned")

    tried: list[int] = []
    [before] = await stage(FailsFirst, max_attempts=2).play([task()], num_repeat=3)
    failed, again = before.failed_attempts[0], before.episodes[1]
    assert (failed.attempt, again.attempt) == (1, 2)
    playing = stage(Talks)
    playing.pool.keep([[before.episodes[0]], [failed, again]])
    counted = playing.engine.stats()
    [group] = await playing.play([task()], num_repeat=3)
    assert group.episodes[:2] == before.episodes[:2]
    assert group.failed_attempts == [failed]
    assert playing.watcher.started == [group.episodes[2].episode_id] == [before.episodes[2].episode_id]
    balance = playing.pool.balance([group], playing.engine.stats() - counted)
    assert balance.difference == 0
    said = failed.forest.sampled_tokens()
    assert (balance.sampled, balance.trained) == (4 * said, 3 * said)
    [following] = await playing.play([task()], num_repeat=3, step=2)
    assert len(playing.watcher.started) == 4
    assert len(following.episodes) == 3


async def test_no_more_episodes_run_at_once_than_allowed(stage: Callable[..., Stage]) -> None:
    running = most = 0

    async def counts(*_: Any) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return HELLO

    await stage(Talks, replies=counts, max_env_worker=3).play([task(str(i)) for i in range(5)], num_repeat=2)
    assert most == 3


async def test_a_session_opens_before_the_one_that_makes_room_for_it_closes(stage: Callable[..., Stage]) -> None:
    log: list[tuple[str, str]] = []

    class Logged(ScriptedEngine):
        def open_session(self, session: str) -> None:
            log.append(("open", session))
            super().open_session(session)

        def close_session(self, session: str) -> None:
            log.append(("close", session))
            super().close_session(session)

    playing = stage(Talks, max_env_worker=1)
    playing.engine.__class__ = Logged
    await playing.play([task("a"), task("b")])
    names = [f"train-000001-{name}-000-1" for name in "ab"]
    assert log == [("open", names[0]), ("open", names[1]), ("close", names[0]), ("close", names[1])]


async def test_seeds_depend_on_the_episode_alone(stage: Callable[..., Stage]) -> None:
    async def seeds(max_env_worker: int) -> dict[str, list[int | None]]:
        seen: dict[str, list[int | None]] = {}

        def script(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
            seen.setdefault(session, []).append(params.seed)
            return HELLO

        playing = stage(Steps, replies=script, max_env_worker=max_env_worker, multi_turn={"max_steps": 2})
        await playing.play([task("a", env_type=ECHO), task("b", env_type=ECHO)], num_repeat=3)
        return seen

    first, second = await seeds(1), await seeds(64)
    assert first == second
    assert len({seed for calls in first.values() for seed in calls}) == 12


@pytest.mark.parametrize("order", [*permutations(range(3))])
async def test_agents_asked_at_once_answer_the_same_in_whatever_order_their_calls_arrive(
    stage: Callable[..., Stage], order: Sequence[int]
) -> None:
    class Asks(Workflow):
        """Three helpers talk at once, two turns each; whose call comes first is `order`'s to say."""

        order: Sequence[int] = ()

        async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
            async def helper(number: int) -> str:
                for _ in range(self.order.index(number)):
                    await asyncio.sleep(0)
                messages = [{"role": "user", "content": f"part {number}"}]
                for _ in range(2):
                    messages += [await proxy.achat(messages), {"role": "user", "content": "go on"}]
                return " ".join(str(message["content"]) for message in messages)

            async def twin() -> str:
                return str((await proxy.achat([{"role": "user", "content": "the same"}]))["content"])

            parts = await asyncio.gather(*map(helper, range(3)))
            twins = await asyncio.gather(twin(), twin())
            return WorkflowOutput(reward=0.0, metadata={"parts": parts, "twins": sorted(twins)})

    def by_seed(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        return [1000 + (params.seed or 0) % 30000]

    async def played(order: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        Asks.order = order
        [group] = await stage(Asks, replies=by_seed).play([task()])
        assert group.dropped is None
        [episode] = group.episodes
        return episode.reward.metadata, [node.token_ids[-2] for node in episode.forest.nodes if node.sampled]

    (expected, answers), (shuffled, reordered) = await played(range(3)), await played(order)
    assert shuffled == expected
    assert sorted(reordered) == sorted(answers)
    assert len(set(answers)) == 8


async def test_the_episodes_of_a_task_meet_the_same_world(stage: Callable[..., Stage]) -> None:
    from astune import Environment
    from astune.config.imports import import_class

    echo: Any = import_class(ECHO, key="env_type", base=Environment)
    echo.opened.clear()
    await stage(Steps, multi_turn={"max_steps": 1}).play(
        [task("a", env_type=ECHO), task("b", env_type=ECHO)], num_repeat=2
    )
    assert len(echo.opened) == 4
    assert len(set(echo.opened)) == 2


async def test_a_task_that_comes_again_within_a_step_gets_episodes_of_its_own(stage: Callable[..., Stage]) -> None:
    playing = stage(Talks)
    groups = await playing.play([task("a"), task("a")], num_repeat=2)
    more = await playing.play([task("a")], num_repeat=2)
    ids = [episode.episode_id for group in [*groups, *more] for episode in group.episodes]
    assert len(set(ids)) == 6
    again = await playing.play([task("a")], num_repeat=1, step=2)
    assert again[0].episodes[0].episode_id == "train-000002-a-000-1"


async def test_turns_beyond_the_limit_end_the_episode_as_truncated(stage: Callable[..., Stage]) -> None:
    playing = stage(Steps, multi_turn={"max_steps": 3})
    [group] = await playing.play([task(env_type=ECHO)])
    [episode] = group.episodes
    assert episode.status == "truncated"
    assert episode.raw_reward == 1.0
    assert (episode.metrics["turns"], episode.metrics["env_steps"]) == (3, 3)
    assert set(episode.timings) == {"wait", "model", "env", "judge", "total"}
    assert [what for _, what in playing.watcher.waits][:4] == ["environment", "workflow", "model", "workflow"]


async def test_a_prompt_that_outgrows_the_context_ends_the_episode_as_truncated(stage: Callable[..., Stage]) -> None:
    flags: list[bool] = []

    class Tolerant(Steps):
        empty_on_overflow = True

        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            while not proxy.context_overflow:
                reply = await proxy.achat([{"role": "user", "content": "on and on " * (1 + 20 * len(flags))}])
                flags.append(bool(reply["content"]))

    class Strict(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await proxy.achat([{"role": "user", "content": "short"}])
            with pytest.raises(ContextOverflow):
                await proxy.achat([{"role": "user", "content": "long " * 200}])
            await proxy.achat([{"role": "user", "content": "long " * 200}])

    for workflow in (Tolerant, Strict):
        [group] = await stage(workflow, max_model_len=100, max_response_length_in_one_turn=20).play([task()])
        assert [episode.status for episode in group.episodes] == ["truncated"], group.dropped
    assert flags == [True, *flags[1:-1], False]


async def test_a_first_prompt_that_does_not_fit_is_an_error_with_its_setting(stage: Callable[..., Stage]) -> None:
    playing = stage(Talks, max_model_len=20, max_response_length_in_one_turn=5, max_attempts=2)
    [group] = await playing.play([task()])
    assert len(group.failed_attempts) == 1
    assert "ContextOverflow" in (group.dropped or "")
    assert "rollout.max_model_len" in (group.dropped or "")


async def test_answers_are_as_long_as_the_context_has_room_for(stage: Callable[..., Stage]) -> None:
    asked: list[tuple[int, int]] = []

    def script(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        asked.append((len(prompt), params.max_tokens))
        return [100] * params.max_tokens

    [group] = await stage(Talks, replies=script, max_model_len=60, max_response_length_in_one_turn=50).play([task()])
    [(prompt, max_tokens)] = asked
    assert prompt + max_tokens == 60
    assert group.episodes[0].metrics["cut_answers"] == 1


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, "3", True])
async def test_a_limit_of_an_answer_that_is_no_whole_number_from_1_on_is_the_workflows_error(
    stage: Callable[..., Stage], max_tokens: Any
) -> None:
    class Limits(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await proxy.aanswer(proxy.init_messages, max_tokens=max_tokens)

    class LimitsInAThread(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> None:
            proxy.answer(proxy.init_messages, max_tokens=max_tokens)

    for workflow in (Limits, LimitsInAThread):
        [group] = await stage(workflow).play([task()])
        [failed] = group.failed_attempts
        assert (failed.error or "").startswith("WorkflowError")
        assert f"max_tokens is {max_tokens!r}" in (failed.error or "")


async def test_a_synchronous_workflow_and_judge_run_beside_the_loop(stage: Callable[..., Stage]) -> None:
    loops_thread = threading.get_ident()
    seen: list[int] = []

    class Synchronous(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
            assert set(proxy.env_info) == {"seed"}
            seen.append(threading.get_ident())
            first = proxy.chat(proxy.init_messages)
            observation, reward, terminate, _ = proxy.gym_step(first)
            assert (observation, reward, terminate) == (f"echo {first['content']}", 0.5, False)
            proxy.chat([*proxy.init_messages, first, {"role": "user", "content": observation}])
            return WorkflowOutput(metrics={"mine": 7})

    class Judge:
        def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
            seen.append(threading.get_ident())
            return 1.0, True

    [group] = await stage(Synchronous, judge=Judge()).play([task(env_type=ECHO)], num_repeat=8)
    assert group.dropped is None
    assert loops_thread not in seen
    assert {episode.metrics["mine"] for episode in group.episodes} == {7}
    assert {len(episode.timelines) for episode in group.episodes} == {1}


async def test_chat_in_async_code_is_refused_rather_than_locking_up(stage: Callable[..., Stage]) -> None:
    class Mistaken(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            proxy.chat(proxy.init_messages)

    [group] = await stage(Mistaken).play([task()])
    assert "await proxy.achat" in (group.dropped or "")


async def test_the_judge_gets_what_the_protocol_promises(stage: Callable[..., Stage], renderer: Renderer) -> None:
    got: list[dict[str, Any]] = []

    class Registers(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            reply = await proxy.achat(proxy.init_messages)
            proxy.update_judge_input_dictionary(final_answer=reply["content"], thing=object())
            assert set(proxy.get_judge_input_dictionary()) == {"final_answer", "thing"}

    class Judge:
        async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
            got.append(judge_input_dictionary)
            return 0.0, False

    [group] = await stage(Registers, judge=Judge()).play([task(metadata={"answer": "4"})])
    [inputs] = got
    text = renderer.decode(HELLO)
    assert inputs["env"] is None
    assert inputs["task_core_arg"].task.metadata == {"answer": "4"}
    assert inputs["final_answer"] == text
    assert inputs["grouped_steps"] == [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]]
    assert group.episodes[0].judge_inputs == {"final_answer": text}


async def test_length_is_penalised_of_what_trained_agents_wrote_and_of_each_message_once(stage, renderer):
    class Branches(Workflow):
        trainable_targets = ("agent",)

        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            asked = [*proxy.init_messages, {"role": "user", "content": "Hi"}]
            answer = await proxy.achat(asked)
            for following in ("Louder.", "Quieter."):
                await proxy.achat([*asked, answer, {"role": "user", "content": following}])
            await proxy.as_agentscope_model("opponent").achat(asked)

    protocol = {"judge_protocol": "length_penalty", "params": {"free": 0, "most": 1000}}
    judge = load_judge(AstuneConfig.model_validate({"task_judge": protocol}))
    shown = [{"role": "user", "content": "Hey"}, {"role": "assistant", "content": "An example of a reply."}]
    asked = Task(task_id="t", init_messages=shown)
    [group] = await stage(Branches, judge=judge).play([asked])
    reward = group.episodes[0].reward
    assert reward is not None
    assert reward.metadata["words"] == 3 * len(renderer.decode(HELLO).split())


@pytest.mark.parametrize(
    ("reward", "is_success", "status"),
    [(0.5, False, "failed"), (0.5, True, "success"), (0.5, None, "failed"), (1.0, None, "success")],
)
async def test_a_workflow_may_give_the_reward_itself(
    reward: float, is_success: bool | None, status: str, stage: Callable[..., Stage]
) -> None:
    class Own(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
            await proxy.achat(proxy.init_messages)
            return WorkflowOutput(reward=reward, is_success=is_success)

    [group] = await stage(Own, judge=None).play([task()])
    assert (group.episodes[0].raw_reward, group.episodes[0].status) == (reward, status)


@pytest.mark.parametrize("targets", [("wolf",), "wolf"])
async def test_only_targets_are_trained(targets: Any, stage: Callable[..., Stage]) -> None:
    class Wolves(Workflow):
        trainable_targets = targets

        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            for name, tag in (("Alice", "wolf"), ("Bob", "wo")):
                model = proxy.as_agentscope_model(name, target_tag=tag)
                await model.achat(
                    [{"role": "system", "content": "Play."}, {"role": "user", "content": f"You are {name}."}]
                )

    playing = stage(Wolves)
    before = playing.engine.stats()
    [group] = await playing.play([task()])
    balance = playing.pool.balance([group], playing.engine.stats() - before)
    assert (balance.trained, balance.masked["not a training target"], balance.difference) == (4, 4, 0)
    assert [timeline.agent for timeline in group.episodes[0].timelines] == ["Alice", "Bob"]
    assert group.episodes[0].targets == {"Alice": "wolf", "Bob": "wo"}


async def test_an_agent_has_one_target_tag(stage: Callable[..., Stage]) -> None:
    class Renames(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            proxy.as_agentscope_model("Alice", target_tag="wolf")
            proxy.as_agentscope_model("Alice", target_tag="farmer")

    [group] = await stage(Renames).play([task()])
    assert "'Alice' was given the target tags 'wolf' and 'farmer'" in (group.failed_attempts[0].error or "")


async def test_a_proxy_that_outlives_its_episode_reaches_nothing(stage: Callable[..., Stage]) -> None:
    kept: list[AstuneProxy] = []

    class Keeps(Talks):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await super().execute(task, proxy)
            kept.append(proxy)

    await stage(Keeps).play([task()])
    with pytest.raises(WorkflowError, match="is over"):
        await kept[0].achat([{"role": "user", "content": "more"}])
    with pytest.raises(WorkflowError, match="is over"):
        kept[0].update_judge_input_dictionary(final_answer="42")


class Whims(Workflow):
    """Does what the task's metadata says: how often to call, whether to branch, and in which attempts to fail."""

    trainable_targets = ("agent",)

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        plan = task.metadata
        messages = proxy.init_messages
        for turn in range(plan["turns"]):
            model = proxy if turn % 2 == 0 else proxy.as_agentscope_model("other")
            reply = await model.achat(messages)
            if plan["branch"]:
                messages = [*proxy.init_messages, {"role": "user", "content": f"again {turn}"}]
            else:
                messages = [*messages, reply, {"role": "user", "content": f"next {turn}"}]
        plan["failures"].append(None)
        if len(plan["failures"]) <= plan["fails"]:
            raise RuntimeError("a whim")
        return WorkflowOutput(reward=float(len(plan["failures"]) % 2))


plans = st.fixed_dictionaries(
    {"turns": st.integers(0, 4), "branch": st.booleans(), "fails": st.integers(0, 3), "failures": st.builds(list)}
)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(plans, min_size=1, max_size=4),
    num_repeat=st.integers(1, 3),
    engine_fails_at=st.integers(0, 30),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
async def test_the_books_of_a_step_balance_whatever_happens(
    renderer: Renderer, steps: list[dict[str, Any]], num_repeat: int, engine_fails_at: int, lengths: list[int]
) -> None:
    calls = 0

    def script(prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == engine_fails_at:
            raise EngineError("out of luck")
        return [100] * lengths[calls % len(lengths)]

    playing = build_stage(renderer, Whims, replies=script, judge=None, max_attempts=2, max_env_worker=3)
    before = playing.engine.stats()
    tasks = [task(f"t{index}", metadata=plan) for index, plan in enumerate(steps)]
    groups = await playing.play(tasks, num_repeat=num_repeat)
    for group in groups:
        if group.dropped is None and len(set(group.rewards)) == 1:
            group.dropped = "group has no variance"
    balance = playing.pool.balance(groups, playing.engine.stats() - before)
    assert balance.difference == 0, balance
    trained = sum(t.n_trained for g in groups if g.dropped is None for e in g.episodes for t in e.timelines)
    assert balance.trained == trained
    assert set(balance.dropped) <= {"group has no variance", "group incomplete", "attempt failed"}
    assert [group.task for group in groups] == tasks
    assert not playing.engine.open_sessions
    assert running_tasks() == []


async def test_an_answer_tells_why_it_ended_and_what_it_cost(stage: Callable[..., Stage]) -> None:
    class Curious(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> None:
            short = proxy.answer([{"role": "user", "content": "Hi"}], max_tokens=2)
            assert (short.finish_reason, short.completion_tokens, len(short.logprobs)) == ("length", 2, 2)
            whole = proxy.answer([{"role": "user", "content": "Hi"}])
            assert whole.finish_reason == "stop"
            assert whole.completion_tokens == len(HELLO) + 1
            assert whole.prompt_tokens == short.prompt_tokens > 0
            assert all(logprob < 0 for logprob in whole.logprobs)
            with pytest.raises(TypeError):
                proxy.chat([{"role": "user", "content": "Hi"}], temperatur=0.5)  # type: ignore[call-arg]

    (group,) = await stage(Curious).play([task()])
    assert group.episodes, group.failed_attempts[0].error
