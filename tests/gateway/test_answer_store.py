"""A gateway that was killed comes back over the same file of answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from astune.gateway.answer_store import AnswerStore
from astune.gateway.app import new_app
from astune.gateway.chat_completions import ChatRequest, Sampled
from astune.gateway.episode_keys import EpisodeKeys, OpenKey
from astune.gateway.in_process import app_client
from astune.gateway.live_answers import LiveAnswer
from astune.gateway.server import GatewayServer
from astune.schema import ConfigError

BODY = b"{}"
REQUEST = ChatRequest(model="m", messages=[{"role": "user", "content": "Hi"}])


class Gateway:
    """The keys of one life of a gateway, and how often its model was asked."""

    def __init__(self, path: Path, key: str = "mine") -> None:
        self.n_asked = 0
        self.keys = EpisodeKeys(AnswerStore(path))
        found = self.keys.find(self.keys.open(self._sample, key, streams_tokens=False, count=self._count))
        assert found is not None
        self.key: OpenKey = found

    async def _sample(self, request: ChatRequest, live: LiveAnswer | None) -> Sampled:
        self.n_asked += 1
        return Sampled({"role": "assistant", "content": f"answer {self.n_asked}"}, (), (-0.5,), "stop", 3)

    async def _count(self, request: ChatRequest) -> int:
        return 1

    async def ask(self, *, repeated: bool, named: str | None = None, arrives: bool = True) -> str:
        given = await self.key.answers(REQUEST, BODY, idempotency_key=named, repeated=repeated)
        (answer,) = await given.answers
        if arrives:
            given.delivered = True
        return answer.message["content"]


async def test_an_answer_that_never_arrived_is_given_after_the_gateway_came_back(tmp_path: Path) -> None:
    first = Gateway(tmp_path / "answers")
    said = [
        await first.ask(repeated=False),
        await first.ask(repeated=False, arrives=False),
        await first.ask(repeated=False),
    ]
    assert said == ["answer 1", "answer 2", "answer 3"]
    second = Gateway(tmp_path / "answers")
    assert await second.ask(repeated=True) == "answer 2"
    assert await second.ask(repeated=True) == "answer 3"
    assert second.n_asked == 0
    assert await second.ask(repeated=False) == "answer 1"  # a request of its own
    assert second.n_asked == 1


async def test_a_named_request_gets_its_answer_and_another_key_gets_nothing(tmp_path: Path) -> None:
    first = Gateway(tmp_path / "answers")
    await first.ask(repeated=False)
    assert await first.ask(repeated=False, named="k") == "answer 2"
    assert await Gateway(tmp_path / "answers").ask(repeated=False, named="k") == "answer 2"
    stranger = Gateway(tmp_path / "answers", key="another")
    assert await stranger.ask(repeated=True, named="k") == "answer 1"
    assert stranger.n_asked == 1


async def test_a_stream_that_is_asked_for_again_first_of_all_is_given_to_its_end(tmp_path: Path) -> None:
    stream = {"model": "m", "messages": REQUEST.messages, "stream": True}

    async def life(retries: int) -> str:
        gateway = Gateway(tmp_path / "answers")
        headers = {"authorization": "Bearer mine", "x-stainless-retry-count": str(retries)}
        url = "http://127.0.0.1/v1/chat/completions"
        async with app_client(new_app(gateway.keys), httpx.AsyncClient) as client:
            answer = await client.post(url, json=stream, headers=headers, timeout=20)
        assert gateway.n_asked == (0 if retries else 1)
        return answer.text

    for text in (await life(0), await life(1)):
        assert '"content":"answer 1"' in text.replace(": ", ":")
        assert text.endswith("data: [DONE]\n\n")


async def test_a_request_that_comes_before_its_key_is_open_waits_for_it() -> None:
    server = GatewayServer(at_once=False)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.base_url.rpartition(":")[2][:-3]))
    writer.write(
        b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer mine\r\nconnection: close\r\n\r\n"
    )
    await writer.drain()

    async def nothing(*_: object) -> Any:
        raise AssertionError("nobody asks")

    server.keys.open(nothing, "mine", streams_tokens=True, count=nothing)
    await asyncio.to_thread(server.serve)
    said = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert said.startswith(b"HTTP/1.1 200"), said


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear Sir, " * 100)
    with pytest.raises(ConfigError, match="letter"):
        AnswerStore(tmp_path / "letter")


async def test_a_key_that_is_served_for_months_keeps_what_lately_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astune.gateway.episode_keys._MOST_KEPT", 10)
    served = Gateway(tmp_path / "answers")
    for number in range(25):
        await served.ask(repeated=False, named=f"request {number}")
    assert await served.ask(repeated=True, named="request 24") == "answer 25"
    assert served.n_asked == 25
    assert await served.ask(repeated=False, named="request 0") == "answer 26"
