"""An episode that asks without pause is told to wait, in its dialect's words, and other episodes are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.exceptions import HTTPException
from stepping import ASK, answers_of, played, stepping

from astune import AstuneProxy
from astune.gateway import rate_limit
from astune.gateway.rate_limit import RateLimit
from astune.renderers import Renderer


@pytest.mark.usefixtures("each_way")
async def test_each_dialect_refuses_with_retry_after_and_the_episode_goes_on(renderer: Renderer) -> None:
    engine = stepping(renderer)
    engine.allow()
    refused: list[tuple[int, Any, str]] = []

    async def agent(proxy: AstuneProxy) -> None:
        by_openai: openai.AsyncOpenAI = proxy.as_openai_client().with_options(max_retries=0)
        by_anthropic: anthropic.AsyncAnthropic = proxy.as_anthropic_client().with_options(max_retries=0)
        await by_openai.chat.completions.create(model="m", messages=ASK)
        await by_openai.responses.create(model="m", input="How many?")
        for ask in (
            lambda: by_openai.chat.completions.create(model="m", messages=ASK, stream=True),
            lambda: by_openai.responses.create(model="m", input="How many?"),
            lambda: by_anthropic.messages.create(model="m", max_tokens=9, messages=ASK),
            lambda: by_anthropic.messages.count_tokens(model="m", messages=ASK),
        ):
            with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as caught:
                await ask()
            body: Any = caught.value.response.json()
            refused.append((int(caught.value.response.headers["retry-after"]), body, caught.value.message))

    episode = await played(renderer, engine, agent, calls_per_minute=2)
    assert episode.status == "success", episode.error
    assert len(answers_of(episode)) == 2
    assert all(0 < wait_s <= 60 for wait_s, *_ in refused)
    assert all("may ask 2 times a minute" in said for *_, said in refused)
    chat, response, message, count = (body for _, body, _ in refused)
    assert chat["error"]["code"] == response["error"]["code"] == "rate_limit_exceeded"
    assert message["error"]["type"] == count["error"]["type"] == "rate_limit_error"


async def test_agents_of_an_episode_share_the_limit_and_another_episode_has_its_own(renderer: Renderer) -> None:
    statuses: list[int] = []

    async def agent(proxy: AstuneProxy) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for name in ("one", "two"):
                base_url, key = proxy.as_oai_baseurl_apikey(agent_name=name)
                answer = await client.post(
                    f"{base_url}/chat/completions",
                    json={"model": "m", "messages": ASK},
                    headers={"authorization": f"Bearer {key}"},
                )
                statuses.append(answer.status_code)

    for _ in range(2):
        engine = stepping(renderer)
        engine.allow()
        await played(renderer, engine, agent, calls_per_minute=1)
    assert statuses == [200, 429, 200, 429]


def test_a_minute_later_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    # The module's own clock: event loops of servers in other threads would sleep for the difference.
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    limit = RateLimit("an episode", 2)
    limit.admit()
    now[0] += 50
    limit.admit()
    with pytest.raises(HTTPException) as caught:
        limit.admit()
    assert (caught.value.headers or {})["retry-after"] == "10"
    now[0] += 10.1
    limit.admit()
    with pytest.raises(HTTPException):
        limit.admit()
