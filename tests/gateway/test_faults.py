"""Agents over a bad network: seeded faults, retries as SDKs make them, and every call is recorded exactly once."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import Any

import pytest
from examples import some
from faulty_client import FaultyClient, converse
from rollout_stage import build_stage

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.replay import faults
from astune.engine.scripted import ScriptedEngine
from astune.gateway.live_answers import LiveAnswers
from astune.renderers import Renderer

CLIENTS = 8
TURNS = 5


def play(renderer: Any, seed: int, n_calls: int) -> None:
    """An episode of several clients; each conversation goes on from what the gateway answered."""
    rng, met = random.Random(seed), Counter[str]()
    words = [
        renderer.answer_ids([{"role": "user", "content": "?"}, {"role": "assistant", "content": word}], [])
        for word in ("Four", "Five and six", "Seven, then eight, and nine at last.")
    ]
    engine = ScriptedEngine(lambda prompt, params, session: words[params.seed % len(words)])

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            base_url, key = proxy.as_oai_baseurl_apikey()

            async def one(number: int) -> None:
                client = FaultyClient(base_url, key, random.Random(seed * 100 + number), met)
                await converse(client, f"client {number}", n_calls // CLIENTS, rng, turns=TURNS)

            await asyncio.gather(*(one(number) for number in range(CLIENTS)))

    stage = build_stage(renderer, Flow, engine=engine)

    async def step() -> None:
        episode = await stage.play_one()
        assert episode.status == "success", episode.error
        answers = [node for node in episode.forest.nodes if node.sampled]
        assert len(answers) == n_calls, "each call is recorded once"
        conversations = CLIENTS * math.ceil(n_calls / CLIENTS / TURNS)
        forks = [node for node in episode.forest.nodes if node.fork_cause]
        assert len(forks) == conversations - 1, "conversations share their beginning, and none forks later"
        assert not list(faults(episode.forest, renderer))
        assert met.total() - met["none"] >= n_calls // 8

    asyncio.run(step())


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_every_call_is_recorded_once_whatever_the_network_does(seed: int, renderer: Renderer) -> None:
    play(renderer, seed, 80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
def test_thousands_of_calls_are_recorded_once(seed: int, renderer: Renderer) -> None:
    play(renderer, seed, 1600)


async def test_a_change_while_a_reader_is_busy_is_not_missed() -> None:
    live = LiveAnswers(1)
    seen = live.version
    live.notify()
    await asyncio.sleep(0)  # the change comes before the reader waits for it
    await asyncio.wait_for(live.change(seen), 5)
