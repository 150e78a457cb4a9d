"""Clients without a socket: what the application sends is read as it is sent, and who hangs up ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import httpx2
import openai
import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from stepping import ASK, TEXT, answers_of, played, stepping

from astune import AstuneProxy, Task, Workflow
from astune.gateway import server
from astune.gateway.in_process import app_client
from astune.renderers import Renderer

URL = "http://127.0.0.1/v1/x?y=%20z"
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
KINDS = [httpx.AsyncClient, httpx2.AsyncClient, openai.DefaultAsyncHttpxClient]


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a socket is opened")

    for name in ("connect", "connect_ex", "bind", "listen"):
        monkeypatch.setattr(socket.socket, name, refused)
    monkeypatch.setattr(server.GatewayServer, "__init__", refused)
    server.gateway.cache_clear()


@pytest.mark.usefixtures("no_socket")
async def test_no_socket_is_opened_and_the_first_token_comes_before_the_last_is_sampled(renderer: Renderer) -> None:
    text = "Four of them are there, and none is here."
    engine = stepping(renderer, text)
    engine.allow(1)
    texts = {"openai": "", "anthropic": ""}

    async def agent(proxy: AstuneProxy) -> None:
        stream = await proxy.as_openai_client().chat.completions.create(model="m", messages=ASK, stream=True)
        async for chunk in stream:
            texts["openai"] += chunk.choices[0].delta.content or ""
            engine.allow(1)  # the next token is sampled because this one came
        engine.allow(1)
        async with proxy.as_anthropic_client().messages.stream(model="m", max_tokens=99, messages=ASK) as theirs:
            async for piece in theirs.text_stream:
                texts["anthropic"] += piece
                engine.allow(1)

    episode = await played(renderer, engine, agent, call_timeout_s=30)
    assert episode.status == "success", episode.error
    assert texts == {"openai": text, "anthropic": text}
    assert answers_of(episode) == [text, text]


async def test_an_agent_that_hangs_up_ends_the_sampling_and_nothing_is_recorded(renderer: Renderer) -> None:
    engine = stepping(renderer)

    async def agent(proxy: AstuneProxy) -> None:
        engine.allow(3)
        stream = await proxy.as_openai_client().chat.completions.create(model="m", messages=ASK, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await asyncio.wait_for(engine.cancelled.wait(), 20)
        engine.allow()
        await proxy.achat(ASK)

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert answers_of(episode) == [TEXT]


async def test_a_client_that_waits_no_longer_gets_the_answer_when_it_asks_again(renderer: Renderer) -> None:
    engine = stepping(renderer)
    said: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client().with_options(timeout=0.01, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="m", messages=ASK)
        engine.allow()
        again = client.with_options(timeout=30).chat.completions
        answer = await again.create(model="m", messages=ASK, extra_headers={"x-stainless-retry-count": "1"})
        said.append(answer.choices[0].message.content)

    episode = await played(renderer, engine, agent)
    assert episode.status == "success", episode.error
    assert said == answers_of(episode) == [TEXT]


async def test_a_client_of_a_thread_of_its_own_streams_too(renderer: Renderer) -> None:
    engine = stepping(renderer)
    engine.allow()
    said: list[str] = []

    class Flow(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> None:
            async def ask() -> None:
                stream = await proxy.as_openai_client().chat.completions.create(model="m", messages=ASK, stream=True)
                said.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))

            asyncio.run(ask())
            asyncio.run(ask())

    stage = build_stage(renderer, Flow, engine=engine)
    ((episode,),) = [group.episodes for group in await stage.play([task_of()])]
    assert said == answers_of(episode) == [TEXT, TEXT]


Served = Callable[[Scope, Receive, Send], Awaitable[None]]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_part_is_read_before_the_next_is_sent(kind: type[Any]) -> None:
    read, seen = asyncio.Event(), list[Any]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([scope["path"], scope["query_string"], await receive()])
        await send(START)
        await send(part(b"first"))
        await asyncio.wait_for(read.wait(), 20)
        await send(part(b"last", more=False))

    async with (
        app_client(app, kind) as client,
        client.stream("POST", URL, content=b"body", headers={"X-One": "1"}) as answer,
    ):
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"first"
        read.set()
        assert [each async for each in parts] == [b"last"]
    assert seen == ["/v1/x", b"y=%20z", {"type": "http.request", "body": b"body", "more_body": False}]


async def test_closing_an_answer_or_giving_up_its_request_cancels_the_application() -> None:
    ended = asyncio.Queue[str]()
    waits = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] == "/begins":
                await send(START)
                await send(part(b"first"))
            waits.set()
            await receive()
            await receive()
        except asyncio.CancelledError:
            ended.put_nowait(scope["path"])
            raise

    async with app_client(app, httpx.AsyncClient) as client:
        async with client.stream("GET", "http://127.0.0.1/begins") as answer:
            assert await anext(answer.aiter_bytes()) == b"first"
        assert await asyncio.wait_for(ended.get(), 20) == "/begins"
        waits.clear()
        asking = asyncio.ensure_future(client.get("http://127.0.0.1/waits"))
        await waits.wait()
        asking.cancel()
        assert await asyncio.wait_for(ended.get(), 20) == "/waits"


async def breaks_before(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a defect")


async def breaks_within(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send(part(b"first"))
    raise RuntimeError("a defect")


@pytest.mark.parametrize("app", [breaks_before, breaks_within])
@pytest.mark.parametrize("http", [httpx, httpx2])
async def test_an_application_that_breaks_off_is_a_connection_that_breaks(app: ASGIApp, http: Any) -> None:
    async with app_client(app, http.AsyncClient) as client:
        with pytest.raises(http.RemoteProtocolError, match="ended before its answer did"):
            await client.get(URL)
