"""Streams of the gateway: tokens as they are sampled, byte for byte what is recorded, and cancelled with their reader.

The engine is a stand-in that waits for the test between two tokens; everything else is the real thing.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from stepping import ASK, TEXT, answers_of, played, stepping

from astune import AstuneProxy
from astune.renderers import Renderer

pytestmark = pytest.mark.usefixtures("each_way")


async def test_a_token_is_sent_before_the_next_is_sampled(renderer: Renderer) -> None:
    text = "Four of them are there, and none is here."
    engine = stepping(renderer, text)
    engine.allow(1)
    pieces: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        async for chunk in await proxy.as_openai_client().chat.completions.create(model="m", messages=ASK, stream=True):
            if chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
                engine.allow(1)  # the next token is sampled because this one came

    episode = await played(renderer, engine, agent, call_timeout_s=30)
    assert episode.status == "success", episode.error
    assert len(pieces) > 8
    assert "".join(pieces) == text == answers_of(episode)[0]


async def test_anthropics_client_reads_the_same_text_as_is_recorded(renderer: Renderer) -> None:
    engine = stepping(renderer)
    engine.allow()
    events: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        client: anthropic.AsyncAnthropic = proxy.as_anthropic_client()
        async with client.messages.stream(model="m", max_tokens=99, messages=ASK) as stream:
            async for event in stream:
                events.append(event.type)
            message = await stream.get_final_message()
        assert message.content[0].type == "text"
        assert message.content[0].text == TEXT
        assert message.stop_reason == "end_turn"

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert events[:2] == ["message_start", "content_block_start"]
    assert "message_stop" in events
    assert answers_of(episode) == [TEXT]


async def test_an_agent_that_hangs_up_ends_the_sampling_and_nothing_is_recorded(renderer: Renderer) -> None:
    engine = stepping(renderer)

    async def agent(proxy: AstuneProxy) -> None:
        base_url, key = proxy.as_oai_baseurl_apikey()
        engine.allow(3)
        async with (
            httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as client,
            client.stream(
                "POST", f"{base_url}/chat/completions", json={"model": "m", "messages": ASK, "stream": True}
            ) as answer,
        ):
            async for _ in answer.aiter_lines():
                break
        await asyncio.wait_for(engine.cancelled.wait(), 20)
        engine.allow()
        await proxy.achat(ASK)

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert answers_of(episode) == [TEXT]


async def test_two_readers_of_one_request_read_one_answer(renderer: Renderer) -> None:
    engine = stepping(renderer)
    read: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()

        async def ask() -> str:
            stream = await client.chat.completions.create(
                model="m", messages=ASK, stream=True, extra_headers={"Idempotency-Key": "one"}
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        first, second = asyncio.ensure_future(ask()), asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        engine.allow()
        read.extend([await first, await second, await ask()])

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert read == [TEXT] * 3
    assert answers_of(episode) == [TEXT]


async def test_several_answers_stream_side_by_side(renderer: Renderer) -> None:
    engine = stepping(renderer)
    engine.allow()
    texts = ["", "", ""]

    async def agent(proxy: AstuneProxy) -> None:
        stream = await proxy.as_openai_client().chat.completions.create(
            model="m", messages=ASK, stream=True, n=3, logprobs=True
        )
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert texts == [TEXT] * 3
    assert len(answers_of(episode)) == 3


async def test_what_fails_before_the_first_token_has_a_status_and_later_an_event(renderer: Renderer) -> None:
    async def asked(fails_after: int) -> tuple[int, str]:
        engine = stepping(renderer, fails_after=fails_after)
        engine.allow()
        seen: list[tuple[int, str]] = []

        async def agent(proxy: AstuneProxy) -> None:
            base_url, key = proxy.as_oai_baseurl_apikey()
            body = {"model": "m", "messages": ASK, "stream": True}
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
                answer = await client.post(f"{base_url}/chat/completions", json=body)
            seen.append((answer.status_code, answer.text))

        episode = await played(renderer, engine, agent)
        assert episode.status == "error"
        assert "the engine broke" in (episode.error or "")
        return seen[0]

    status, body = await asked(0)
    assert (status, "error" in json.loads(body)) == (503, True)
    status, body = await asked(4)
    assert status == 200
    assert "the engine broke" in json.loads(body.strip().splitlines()[-1].removeprefix("data: "))["error"]["message"]


async def test_a_stream_of_an_engine_without_one_is_the_finished_answer(renderer: Renderer) -> None:
    whole = stepping(renderer)
    whole.allow()

    class Plain:
        """An engine that has `generate` alone."""

        def __getattr__(self, name: str) -> Any:
            if name == "stream":
                raise AttributeError(name)
            return getattr(whole, name)

    chunks: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        (model,) = (await client.models.list()).data
        assert model.model_extra == {"streams_tokens": False}
        async for chunk in await client.chat.completions.create(model="m", messages=ASK, stream=True):
            chunks.append(chunk.choices[0].delta.content or "")

    engine: Any = Plain()
    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert [chunk for chunk in chunks if chunk] == [TEXT]


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_an_episode_that_ends_while_it_streams_ends_the_stream(renderer: Renderer, when: str) -> None:
    engine = stepping(renderer)
    streams: list[asyncio.Task[Any]] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        engine.allow(0 if when == "at once" else 3)

        async def ask() -> None:
            async for _ in await client.chat.completions.create(model="m", messages=ASK, stream=True):
                pass

        streams.append(asyncio.ensure_future(ask()))
        await engine.waiting.wait()

    await played(renderer, engine, agent)
    with pytest.raises(openai.APIError):
        await asyncio.wait_for(streams[0], 20)
