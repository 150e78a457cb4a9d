"""Requests that are sent again while equal ones are on their way: each gets the answer of the one that it repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from astune.gateway.app import new_app
from astune.gateway.chat_completions import ChatRequest, Sampled
from astune.gateway.episode_keys import EpisodeKeys
from astune.gateway.in_process import app_client
from astune.gateway.live_answers import LiveAnswer
from astune.renderers.settled import Settled

TURNS = 200
"""Turns of the event loop, in which a request that is answered at once is answered."""


class Asked:
    """An agent and its model, which answers "answer 1", "answer 2" and so on as soon as it may."""

    def __init__(self) -> None:
        self.n_asked = 0
        self.may_answer = asyncio.Event()
        self.refuses = False
        keys = EpisodeKeys()
        keys.open(self._sample, "mine", streams_tokens=True, count=self._count, admit=self._admit)
        self.client = app_client(new_app(keys), httpx.AsyncClient)

    def _admit(self) -> None:
        if self.refuses:
            raise HTTPException(429, "too often")

    async def _count(self, request: ChatRequest) -> int:
        return 1

    async def _sample(self, request: ChatRequest, live: LiveAnswer | None) -> Sampled:
        self.n_asked += 1
        text = f"answer {self.n_asked}"
        if live is not None:
            live.begin(3, lambda _: Settled(content="answer"), cancel=asyncio.current_task().cancel)  # type: ignore
            live.feed(1)
        await self.may_answer.wait()
        return Sampled({"role": "assistant", "content": text}, (), (-0.5,), "stop", 3)

    async def post(self, *, repeated: bool = False, stream: bool = False) -> httpx.Response:
        headers = {"authorization": "Bearer mine", "x-stainless-retry-count": str(int(repeated))}
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        return await self.client.post("http://127.0.0.1/v1/chat/completions", json=body, headers=headers, timeout=20)

    async def begun(self, **how: Any) -> asyncio.Task[httpx.Response]:
        """A request that the gateway has, and has not answered."""
        posting = asyncio.ensure_future(self.post(**how))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not posting.done()
        return posting


async def hang_up(posting: asyncio.Task[httpx.Response]) -> None:
    posting.cancel()
    await asyncio.wait({posting})


def text_of(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    asked = Asked()
    async with asked.client:
        yield asked


async def test_what_is_sent_again_gets_the_answer_that_nobody_waits_for(asked: Asked) -> None:
    first, second = await asked.begun(), await asked.begun()
    await hang_up(second)
    again = await asked.begun(repeated=True)
    asked.may_answer.set()
    assert [text_of(await first), text_of(await again)] == ["answer 1", "answer 2"]
    assert asked.n_asked == 2


async def test_two_that_are_sent_again_get_two_answers(asked: Asked) -> None:
    for posting in [await asked.begun(), await asked.begun()]:
        await hang_up(posting)
    again = [await asked.begun(repeated=True) for _ in range(2)]
    asked.may_answer.set()
    assert {text_of(await each) for each in again} == {"answer 1", "answer 2"}
    lost = [text_of(await asked.post(repeated=True)) for _ in range(2)]  # both were sent, and did not arrive
    assert set(lost) == {"answer 1", "answer 2"}
    assert asked.n_asked == 2


async def test_what_was_refused_is_sampled_when_it_is_sent_again(asked: Asked) -> None:
    asked.may_answer.set()
    assert text_of(await asked.post()) == "answer 1"
    asked.refuses = True
    assert [(await asked.post(repeated=again)).status_code for again in (False, True)] == [429, 429]
    asked.refuses = False
    assert text_of(await asked.post(repeated=True)) == "answer 2"
    assert text_of(await asked.post(repeated=True)) == "answer 2"
    assert asked.n_asked == 2


async def test_a_stream_that_was_broken_off_is_sampled_when_it_is_sent_again(asked: Asked) -> None:
    first, second = await asked.begun(stream=True), await asked.begun(stream=True)
    await hang_up(second)
    asked.may_answer.set()
    assert '"content": " 1"' in (await first).text
    assert '"content": " 3"' in (await asked.post(repeated=True, stream=True)).text
    assert asked.n_asked == 3
