"""Episodes whose model is behind servers: what the display knows of them, the books, and a server that dies."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack

from rollout_stage import HELLO, Watcher, build_stage, task
from token_server import TokenServer, listening, serving
from weights_server import until

from astune import AstuneProxy, Task, Workflow
from astune.app.progress import Progress
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.engine.scripted import ScriptedEngine
from astune.trainer.measures import engine_metrics


class Talks(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        first = await proxy.achat(proxy.init_messages)
        await proxy.achat([*proxy.init_messages, first, {"role": "user", "content": "And?"}])


def engine_of(*servers: TokenServer) -> Replicas:
    return Replicas([ServedEngine(Endpoint(server.url, model="m"), max_model_len=4096) for server in servers])


async def test_the_display_sees_what_episodes_wait_for_and_how_many_tokens_come_and_go(renderer):
    go = threading.Event()

    async def when_told(*_: object) -> list[int]:
        while not go.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.005)
        return HELLO

    with serving(ScriptedEngine(when_told)) as server:
        engine = engine_of(server)
        progress = Progress(total_steps=1, episodes_of={"rollout": 5})
        progress.on_phase("rollout")
        stage = build_stage(renderer, Talks, engine=engine, observer=progress, max_env_worker=3)
        before = engine.stats()
        playing = asyncio.ensure_future(stage.play([task()], num_repeat=5))
        await until(lambda: engine.stats().running == 3)
        assert progress.waits() == {"model": 3}
        assert (progress.waiting, progress.finished, progress.failed) == (2, 0, 0)
        go.set()
        groups = await playing
        after = engine.stats()
        assert (progress.waiting, progress.finished, progress.waits().total()) == (0, 5, 0)
        counted = after - before
        assert stage.pool.balance(groups, counted).difference == 0
        measures = engine_metrics(counted, 2.0)
        n_sampled = 5 * 2 * (len(HELLO) + 1)
        assert measures["engine/sampled_tokens"] == n_sampled
        assert measures["engine/tokens_per_s_out"] == n_sampled / 2.0
        read = sum(len(call["prompt"]) for call in server.asked)
        assert measures["engine/tokens_per_s_in"] == read / 2.0
        await engine.aclose()


async def test_the_episodes_of_a_server_that_dies_are_run_again_on_another_one_and_the_books_balance(renderer):
    held = threading.Event()

    async def never(*_: object) -> list[int]:
        held.set()
        await asyncio.sleep(3600)
        return HELLO

    with serving(ScriptedEngine(lambda *_: HELLO)) as lives, ExitStack() as life:
        dies = life.enter_context(listening(TokenServer(ScriptedEngine(never))))
        engine = engine_of(lives, dies)
        watcher = Watcher()
        stage = build_stage(renderer, Talks, engine=engine, observer=watcher, max_attempts=2)
        before = engine.stats()
        playing = asyncio.ensure_future(stage.play([task("a"), task("b")], num_repeat=3))
        await until(held.is_set)
        await asyncio.to_thread(life.close)
        groups = await playing
        assert [len(group.episodes) for group in groups] == [3, 3]
        assert all(group.dropped is None for group in groups)
        assert len(watcher.failed) == 3
        assert all("/v1/completions" in (episode.error or "") for episode in watcher.failed)
        assert stage.pool.balance(groups, engine.stats() - before).difference == 0
        await engine.aclose()
