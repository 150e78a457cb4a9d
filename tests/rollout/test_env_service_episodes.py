"""Episodes whose environment lives in a real service: reader, pool, agent, judge, and a server that dies meanwhile."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ports import free_port
from rollout_stage import Stage
from service_stage import Service, running

from astune import AstuneProxy, Task, Workflow
from astune.config.schema import AstuneConfig, TaskReaderConfig
from astune.task_judge import EnvServiceJudge
from astune.task_reader import TaskReaderEnvService, open_task_reader

pytestmark = pytest.mark.slow

JUDGE = EnvServiceJudge(AstuneConfig())
_SUM = re.compile(r"What is (\d+) \+ (\d+)\?")


class Calculates(Workflow):
    """Asks until the environment ends the episode."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = list(proxy.init_messages)
        while True:
            reply = await proxy.achat(messages)
            observation, _, ended, _ = await proxy.agym_step(reply)
            if ended:
                return
            messages += [reply, {"role": "user", "content": observation}]


class CalculatesInAThread(Workflow):
    """The same as an ordinary function."""

    def execute(self, task: Task, proxy: AstuneProxy) -> None:  # type: ignore[override]
        messages = list(proxy.init_messages)
        while True:
            reply = proxy.chat(messages)
            observation, _, ended, _ = proxy.gym_step(reply)
            if ended:
                return
            messages += [reply, {"role": "user", "content": observation}]


Script = Callable[[list[int], Any, str], Sequence[int]]


@pytest.fixture(scope="session")
def solves(tokenizer: Any) -> Callable[..., Script]:
    """A model that calculates, then answers; `meanwhile` is called before it answers."""

    def script(meanwhile: Callable[[], None] = lambda: None) -> Script:
        def reply(prompt: list[int], params: Any, session: str) -> Sequence[int]:
            text = tokenizer.decode(prompt)
            asked = _SUM.findall(text)
            [(a, b)] = asked
            result = re.search(r"<result>(.*?)</result>", text)
            if result:
                meanwhile()
            words = rf"\boxed{{{result[1]}}}" if result else f"<calc>{a}+{b}</calc>"
            return tokenizer.encode(words, add_special_tokens=False)

        return reply

    return script


def tasks_of(url: str | None) -> list[Task]:
    config = TaskReaderConfig.model_validate(
        {
            "type": "env_service",
            "env_service": {"env_type": "calculator", "env_url": url, "validation_split": "validation"},
        }
    )
    reader = open_task_reader(config)
    assert isinstance(reader, TaskReaderEnvService)
    return reader.read().training


@pytest.mark.parametrize("workflow", [Calculates, CalculatesInAThread])
async def test_a_whole_walk_through_the_service_is_like_one_in_this_process(stage, solves, workflow):
    played = {}
    with running("calculator") as service:
        for url in (service.url, None):
            played_here: Stage = stage(workflow, replies=solves(), judge=JUDGE, call_timeout_s=20)
            groups = await played_here.play(tasks_of(url)[:3], num_repeat=2)
            assert [group.dropped for group in groups] == [None] * 3
            episodes = [episode for group in groups for episode in group.episodes]
            assert [(episode.status, episode.raw_reward) for episode in episodes] == [("success", 1.0)] * 6
            assert all(episode.metrics["env_steps"] == 2 for episode in episodes)
            played[url] = [[node.token_ids for node in episode.forest.nodes] for episode in episodes]
        assert service.capacity()[0] == 0
    assert played[service.url] == played[None]


async def test_more_episodes_than_places_take_turns(stage, solves):
    with running("calculator", "--max-instances", "2") as service:
        crowd: Stage = stage(Calculates, replies=solves(), judge=JUDGE, call_timeout_s=30)
        groups = await crowd.play(tasks_of(service.url)[:6])
        assert [group.dropped for group in groups] == [None] * 6


async def test_after_the_death_of_the_server_an_episode_begins_anew_in_the_next_one(stage, solves):
    port = free_port()
    servers = [Service("calculator", "--port", str(port))]

    def kill_once() -> None:
        if len(servers) == 1:
            servers[0].end(signal.SIGKILL)
            servers.append(Service("calculator", "--port", str(port)))

    try:
        alone: Stage = stage(Calculates, replies=solves(kill_once), judge=JUDGE, max_attempts=2, call_timeout_s=20)
        [group] = await alone.play(tasks_of(servers[0].url)[:1])
    finally:
        for server in servers:
            server.end()
    assert (group.dropped, group.episodes[0].status) == (None, "success")
    [failed] = group.failed_attempts
    assert failed.reward is None
    assert re.search(
        r"EnvError: .*step of task .* at http://127.0.0.1:\d+/step: 404 there is no instance", failed.error
    )


async def test_without_a_server_the_group_is_dropped_and_nothing_is_rewarded(stage, solves):
    for call_timeout_s in (1, 10):  # until one is long enough for what comes before the server's death
        service = Service("calculator")

        def kill(service: Service = service) -> None:
            service.end(signal.SIGKILL)

        try:
            settings = {"judge": JUDGE, "max_attempts": 2, "call_timeout_s": call_timeout_s}
            alone: Stage = stage(Calculates, replies=solves(kill), **settings)
            [group] = await alone.play(tasks_of(service.url)[:1])
        finally:
            service.end()
        if "/create" not in (group.failed_attempts[0].error or ""):
            break
    assert group.episodes == []
    assert group.dropped.startswith("group incomplete: EnvError: environment calculator, create of task")
    assert [episode.reward for episode in group.failed_attempts] == [None, None]
    first, second = (episode.error for episode in group.failed_attempts)
    assert "/step: no answer" in first
    assert "/create: no answer" in second
