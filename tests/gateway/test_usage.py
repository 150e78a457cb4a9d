"""The tokens of a call, those from the engine's cache among them, in the words of each dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from rollout_stage import build_stage, flow
from token_server import serving

from astune import AstuneProxy, Task, Workflow
from astune.config.schema import AstuneConfig
from astune.engine.local.in_process import InProcessEngine
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.text_endpoint import TextEndpointEngine
from astune.renderers import Renderer
from astune.renderers.text_renderer import TextRenderer

Ask = Callable[[Any], Awaitable[tuple[int, int, int]]]
"""Asks a model; the tokens that were read, those of them that came from the cache, and those that were written."""
LIMIT = 5


def openais(proxy: AstuneProxy, *, streamed: bool) -> Ask:
    async def ask(messages: Any) -> tuple[int, int, int]:
        asked: Any = {"model": "m", "messages": messages, "max_tokens": LIMIT}
        completions = proxy.as_openai_client().chat.completions
        if streamed:
            options: Any = {"include_usage": True}
            chunks = await completions.create(**asked, stream=True, stream_options=options)
            usage = [chunk.usage async for chunk in chunks][-1]
        else:
            usage = (await completions.create(**asked)).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0, usage.completion_tokens

    return ask


def responses(proxy: AstuneProxy, *, streamed: bool) -> Ask:
    async def ask(messages: Any) -> tuple[int, int, int]:
        asked: Any = {"model": "m", "input": messages, "max_output_tokens": LIMIT}
        given = proxy.as_openai_client().responses
        if streamed:
            events: list[Any] = [event async for event in await given.create(**asked, stream=True)]
            last = events[-1]
            assert last.type in ("response.completed", "response.incomplete")
            usage = last.response.usage
        else:
            usage = (await given.create(**asked)).usage
        assert usage is not None
        return usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens

    return ask


def anthropics(proxy: AstuneProxy, *, streamed: bool) -> Ask:
    async def ask(messages: Any) -> tuple[int, int, int]:
        asked: Any = {"model": "m", "messages": messages, "max_tokens": LIMIT, "service_tier": "auto"}
        given = proxy.as_anthropic_client().messages
        if streamed:
            async with given.stream(**asked) as stream:
                usage = (await stream.get_final_message()).usage
        else:
            usage = (await given.create(**asked)).usage
        cached = usage.cache_read_input_tokens or 0
        return usage.input_tokens + cached, cached, usage.output_tokens

    return ask


def test_every_dialect_tells_what_came_from_the_engines_cache(tiny_folder: Path, renderer: Renderer) -> None:
    config = AstuneConfig.model_validate({"engine": {"kv_cache_gb": 0.1, "max_batch_size": 4}})
    engine = InProcessEngine.load(tiny_folder, model=config.model, engine=config.engine, max_model_len=1024)
    told: list[tuple[int, int, int]] = []

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            for dialect in (openais, responses, anthropics):
                for streamed in (False, True):
                    messages: Any = [{"role": "user", "content": f"Count with {dialect.__name__}, {streamed}."}]
                    ask = dialect(proxy, streamed=streamed)
                    before = engine.stats()
                    first = await ask(messages)
                    messages += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Count again."}]
                    second = await ask(messages)
                    after = engine.stats()
                    read = after.prompt_tokens - before.prompt_tokens
                    cached = read - (after.prefilled_tokens - before.prefilled_tokens)
                    assert (first[0] + second[0], first[1] + second[1]) == (read, cached)
                    assert second[1] > first[0] // 2, "the conversation so far is in the cache"
                    told.extend((first, second))

    async def step() -> None:
        episode = await build_stage(renderer, Flow, engine=engine).play_one()
        assert episode.status == "success", episode.error
        await engine.aclose()

    asyncio.run(step())
    assert len(told) == 12
    assert all(written <= LIMIT for _, _, written in told)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_an_endpoint_that_gives_text_only_are_refused_by_the_settings_name(stream: bool) -> None:
    refused: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        completions = proxy.as_openai_client().chat.completions
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        with pytest.raises(openai.BadRequestError) as caught:
            await completions.create(**asked, logprobs=True)
        refused.append(caught.value.message)
        await completions.create(**asked)

    with serving(None) as server:
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        episode = await build_stage(TextRenderer(), flow(agent), engine=engine, engine_type="openai").play_one()
        await engine.aclose()
    assert episode.status == "success", episode.error
    assert "engine.type: openai" in refused[0]
    assert "ask without logprobs" in refused[0]


async def test_logprobs_of_an_openai_endpoint_that_gives_token_ids_are_known(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
        (choice,) = (await proxy.as_openai_client().chat.completions.create(**asked)).choices
        assert choice.logprobs is not None
        assert choice.logprobs.content

    episode = await build_stage(renderer, flow(agent), engine_type="openai").play_one()
    assert episode.status == "success", episode.error
