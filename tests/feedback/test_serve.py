"""`astune serve`, asked by SDKs: answers, a log of conversations, feedback, shares, limits."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from astune_command import start

from astune.app.serving import ModelServer
from astune.config.schema import AstuneConfig
from astune.feedback import FeedbackStore

SHORT = ("--set", "rollout.max_response_length_in_one_turn=4", "--set", "rollout.max_model_len=256")
pytestmark = pytest.mark.slow


class Served:
    """The command, and what it printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        asked = ("serve", *arguments, "--port", "0", *SHORT)
        self.process = start(folder, *asked, together=True, ASTUNE_KEY_BOB="bobs-key")
        assert self.process.stdout is not None
        self.told = ""
        for line in self.process.stdout:
            self.told += line
            if "curl" in line:
                break
        found = re.search(r"OPENAI_BASE_URL=(\S+)", self.told)
        assert found is not None, self.told
        self.url = found[1]
        self.root = self.url.removesuffix("/v1")
        self.keys = dict(re.findall(r"^(\w+): export OPENAI_API_KEY=(\S+)", self.told, re.MULTILINE))

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, rest
        assert "Traceback" not in rest


@pytest.fixture
def served(tiny_folder: Path, tmp_path: Path) -> Iterator[Served]:
    model = str(tiny_folder)
    clients = ("--client", "ann", "--client", "bob", "--rate", "30")
    started = Served(tmp_path, model, model, "--share", "0.5", "--share", "0.5", *clients)
    try:
        yield started
    finally:
        started.process.kill()


def test_conversations_of_all_dialects_are_kept_masked_and_rated(served: Served, tmp_path: Path) -> None:
    assert served.keys["bob"] == "bobs-key"
    client = openai.OpenAI(base_url=served.url, api_key=served.keys["ann"])
    ask = {"model": "any", "messages": [{"role": "user", "content": "Write to ann@example.com"}]}
    answer = client.chat.completions.create(**ask, user="u1", extra_headers={"x-session-id": "s1"})  # type: ignore[call-overload]
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
        if chunk.choices
    )
    other = anthropic.Anthropic(base_url=served.root, api_key="bobs-key")
    message = other.messages.create(
        model="any", max_tokens=2, messages=[{"role": "user", "content": "Hi"}], metadata={"user_id": "u2"}
    )
    head = {"authorization": f"Bearer {served.keys['ann']}"}
    rated = {"conversation_id": answer.id, "rating": -1, "corrected_answer": "Done.", "comment": "mail x@y.org"}
    asked = httpx.Client(base_url=served.root, timeout=60)
    told = [asked.post("/feedback", json=rated, headers=head).status_code for _ in range(2)]
    assert told[0] == 201
    assert asked.post("/feedback", json={"trace_id": message.id, "rating": 1}, headers=head).status_code == 201
    for wrong, status in (({"trace_id": "nobody", "rating": 1}, 404), ({"rating": 1}, 400), ({"trace_id": "x"}, 400)):
        assert asked.post("/feedback", json=wrong, headers=head).status_code == status
    assert asked.post("/feedback", json=rated).status_code == 401
    usage = asked.get("/usage", headers=head).json()
    assert usage["requests"] == 2
    assert usage["prompt_tokens"] == 2 * answer.usage.prompt_tokens
    health = asked.get("/healthz").json()
    assert health == {"status": "OK", "capacity": {"keys": 2, "running": 0}, "weights_version": 0, "lanes": {}}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("feedback.sqlite3*")} == {0o600}
    served.end()
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    kept = {each.interaction_id: each for each in store.interactions()}
    first = kept[answer.id]
    assert first.messages[0]["content"] == "Write to [email]"
    assert first.messages[-1]["content"] == answer.choices[0].message.content
    assert (first.session, first.client, first.source) == ("s1", "ann", "served")
    assert first.user.startswith("u:")
    assert streamed in {each.messages[-1]["content"] for each in kept.values()}
    assert kept[message.id].client == "bob"
    opinions = store.opinions()
    assert opinions[answer.id].corrected_answer == "Done."
    assert opinions[message.id].rating == 1.0
    assert {each.comment for each in store.ratings()} == {"mail [email]", ""}
    store.close()


def test_a_session_stays_with_its_version_and_a_flood_is_refused(served: Served, tmp_path: Path) -> None:
    client = openai.OpenAI(base_url=served.url, api_key=served.keys["ann"], max_retries=0)
    for number in range(12):
        first = [{"role": "user", "content": f"question {number}"}]
        answer = client.chat.completions.create(model="any", messages=first)  # type: ignore[arg-type]
        then = [
            *first,
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "?"},
        ]
        client.chat.completions.create(model="any", messages=then)  # type: ignore[arg-type]
    for _ in range(6):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "more"}])
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "more"}])
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
    assert openai.OpenAI(base_url=served.url, api_key="bobs-key").models.list().data[0].id == "policy"
    served.end()
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    versions: dict[str, set[str]] = {}
    for each in store.interactions():
        versions.setdefault(each.session, set()).add(each.model)
    assert all(len(models) == 1 for models in versions.values())
    assert len(set.union(*versions.values())) == 2, "both versions have sessions"
    store.close()


@asynccontextmanager
async def served_here(model: Path, store: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server in this process."""
    config = AstuneConfig.model_validate(
        {"model": {"path": str(model)}, "rollout": {"max_model_len": 256, "max_response_length_in_one_turn": 4}}
    )
    server = ModelServer([(config, 1.0)], clients={"bob": "bobs-key"}, store=store)
    ready = asyncio.Event()
    serving = asyncio.ensure_future(server.serve(ready))
    try:
        await asyncio.wait_for(ready.wait(), 120)
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="bobs-key", max_retries=0) as client:
            yield client
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        server.store.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_to_one_request_are_refused_since_feedback_names_one(
    tiny_folder: Path, tmp_path: Path, stream: bool
) -> None:
    async with served_here(tiny_folder, tmp_path / "feedback.sqlite3") as client:
        ask: Any = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        with pytest.raises(openai.BadRequestError, match="one answer a request") as refused:
            await client.chat.completions.create(**ask, n=2)
        assert refused.value.param == "n"
        assert await client.chat.completions.create(**ask, n=1)


async def test_an_answer_that_cannot_be_kept_is_an_error_that_names_the_store(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "feedback.sqlite3"
    async with served_here(tiny_folder, store) as client:
        with closing(sqlite3.connect(store)) as damaging:
            damaging.execute("DROP TABLE interactions")
        with pytest.raises(openai.InternalServerError, match="no such table") as failed:
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
    assert failed.value.status_code == 503
    assert str(store) in failed.value.message
    assert str(store) in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_request_that_comes_while_the_model_loads_is_answered_by_it(tiny_folder: Path, tmp_path: Path) -> None:
    """After a restart on its port: a client whose key is not open yet is not turned away."""
    config = AstuneConfig.model_validate(
        {"model": {"path": str(tiny_folder)}, "rollout": {"max_model_len": 256, "max_response_length_in_one_turn": 4}}
    )
    server = ModelServer([(config, 1.0)], clients={"bob": "bobs-key"}, store=tmp_path / "feedback.sqlite3")
    host, _, port = server.base_url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer bobs-key\r\nconnection: close\r\n\r\n"
    )
    await writer.drain()
    serving = asyncio.ensure_future(server.serve(asyncio.Event()))
    said = await asyncio.wait_for(reader.read(), 120)
    serving.cancel()
    await asyncio.wait([serving])
    writer.close()
    server.store.close()
    assert said.startswith(b"HTTP/1.1 200"), said
