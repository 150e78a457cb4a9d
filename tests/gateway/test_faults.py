"""Agents over a bad network: seeded faults, retries as SDKs make them, and every call is recorded exactly once."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.replay import faults
from astune.engine.scripted import ScriptedEngine
from astune.gateway.live_answers import LiveAnswers
from astune.renderers import Renderer

CLIENTS = 8
TURNS = 5
FAULTS = ("dropped", "cut", "duplicated", "late")


class Client:
    """One client of a gateway, whose requests meet faults before they succeed."""

    def __init__(self, base_url: str, key: str, rng: random.Random, met: Counter[str]) -> None:
        self._address = urlsplit(base_url)
        self._key = key
        self._rng = rng
        self._met = met

    async def call(self, messages: list[Any], *, named: str | None, stream: bool) -> str:
        """The answer's text, after as many faults as the seed wants."""
        for attempt in range(10):
            fault = self._rng.choice(FAULTS) if attempt < 3 and self._rng.random() < 0.4 else "none"
            if fault == "duplicated" and (named is None or stream):
                fault = "none"
            self._met[fault] += 1
            sent = [self._send(messages, attempt, named, fault, stream=stream)]
            if fault == "duplicated":
                sent.append(self._send(messages, attempt, named, "none", stream=stream))
            *_, last = answers = await asyncio.gather(*sent)
            if last is not None:
                assert set(answers) == {last}, "what was sent twice has one answer"
                return last
        raise AssertionError("unreachable")

    async def _send(
        self, messages: list[Any], attempt: int, named: str | None, fault: str, *, stream: bool
    ) -> str | None:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: 127.0.0.1",
            "connection: close",
            "content-type: application/json",
            f"authorization: Bearer {self._key}",
            f"content-length: {len(body)}",
            f"x-stainless-retry-count: {attempt}",
            *([f"idempotency-key: {named}"] if named else []),
        ]
        writer.write("\r\n".join([*head, "", ""]).encode())
        try:
            if fault == "late":
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(body)
            await writer.drain()
            if fault == "dropped":
                return None
            if fault == "cut":
                await reader.readexactly(20)
                return None
            said = (await reader.read()).decode()
        finally:
            writer.transport.abort()
        assert said.startswith("HTTP/1.1 200"), said
        return text_of(said, stream=stream)


def text_of(said: str, *, stream: bool) -> str:
    if not stream:
        return json.loads(said.partition("\r\n\r\n")[2])["choices"][0]["message"]["content"]
    assert '"error"' not in said, said[-800:]
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


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
                client = Client(base_url, key, random.Random(seed * 100 + number), met)
                messages: list[Any] = []
                for turn in range(n_calls // CLIENTS):
                    if turn % TURNS == 0:
                        messages = [{"role": "user", "content": f"client {number}, conversation {turn}"}]
                    named = f"{number}-{turn}" if rng.random() < 0.5 else None
                    said = await client.call(messages, named=named, stream=rng.random() < 0.4)
                    messages = [
                        *messages,
                        {"role": "assistant", "content": said},
                        {"role": "user", "content": "Go on."},
                    ]

            await asyncio.gather(*(one(number) for number in range(CLIENTS)))

    stage = build_stage(renderer, Flow, engine=engine)

    async def step() -> None:
        before = engine.stats()
        groups = await stage.play([task_of()])
        (episode,) = groups[0].episodes or groups[0].failed_attempts
        assert episode.status == "success", episode.error
        answers = [node for node in episode.forest.nodes if node.sampled]
        assert len(answers) == n_calls, "each call is recorded once"
        conversations = CLIENTS * math.ceil(n_calls / CLIENTS / TURNS)
        forks = [node for node in episode.forest.nodes if node.fork_cause]
        assert len(forks) == conversations - 1, "conversations share their beginning, and none forks later"
        assert not list(faults(episode.forest, renderer))
        balance = stage.pool.balance(groups, before, engine.stats())
        assert balance.difference == 0
        assert met.total() - met["none"] >= n_calls // 8

    asyncio.run(step())


@pytest.mark.parametrize("seed", range(3))
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
