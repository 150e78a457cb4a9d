"""An episode's model over HTTP, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from rollout_stage import Stage, build_stage, flow

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.replay import faults
from astune.gateway.chat_completions import Sampled
from astune.renderers import Renderer
from astune.schema import Episode

pytestmark = pytest.mark.usefixtures("each_way")
ASK: list[Any] = [{"role": "user", "content": "How many?"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
Agent = Callable[[AstuneProxy], Awaitable[None]]


def staged(renderer: Renderer, agent: Agent, text: str = "Four", **rollout: Any) -> Stage:
    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": text}], [])
    return build_stage(renderer, flow(agent), replies=lambda *_: ids, **rollout)


async def played(renderer: Renderer, agent: Agent, text: str = "Four", **rollout: Any) -> Episode:
    """The only episode of an agent whose model always answers `text`."""
    return await staged(renderer, agent, text, **rollout).play_one()


def sampled(episode: Episode) -> int:
    return sum(node.sampled for node in episode.forest.nodes)


async def test_a_conversation_of_openais_client_is_recorded_token_for_token(renderer: Renderer) -> None:
    seen: list[str | None] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        first = await client.chat.completions.create(model="any", messages=ASK)
        answer: Any = first.choices[0].message.model_dump(exclude_none=True)
        more = [*ASK, answer, {"role": "user", "content": "Sure?"}]
        second = await client.chat.completions.create(model="any", messages=more)
        seen.extend(answer.choices[0].message.content for answer in (first, second))
        assert first.usage is not None
        assert first.usage.completion_tokens == 2  # the word, and the end of the turn
        assert first.choices[0].finish_reason == "stop"

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error
    assert seen == ["Four", "Four"]
    assert sampled(episode) == 2
    assert not [node for node in episode.forest.nodes if node.fork_cause]
    assert not list(faults(episode.forest, renderer))


async def test_openais_client_reads_the_stream(renderer: Renderer) -> None:
    pieces: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        options: Any = {"include_usage": True}
        async with client.chat.completions.stream(model="m", messages=ASK, stream_options=options) as stream:
            async for event in stream:
                pieces.append(event.type)
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Four"
        assert final.usage is not None

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error
    assert "content.done" in pieces
    assert sampled(episode) == 1


async def test_a_tool_call_comes_back_as_one_and_goes_on_without_a_branch(renderer: Renderer) -> None:
    ids: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        first = await client.chat.completions.create(model="m", messages=ASK, tools=[ADD], tool_choice="required")
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls
        (call,) = choice.message.tool_calls
        ids.append(call.id)
        said: Any = choice.message.model_dump(exclude_none=True)
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "5"}
        await client.chat.completions.create(model="m", messages=[*ASK, said, result], tools=[ADD])

    call: Any = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    ids_of_call = renderer.answer_ids([*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}], [ADD])

    episode = await build_stage(renderer, flow(agent), replies=lambda *_: ids_of_call).play_one()
    assert episode.status == "success", episode.error
    assert len(ids) == 1
    assert not [node.fork_cause for node in episode.forest.nodes if node.fork_cause]


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"stop": [""]}, "stop.0"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"n": 99}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"web_search_options": {"user_location": None}}, "web_search_options"),
    ],
)
async def test_what_is_not_offered_is_refused_by_its_key(renderer: Renderer, asked: dict[str, Any], key: str) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.post("/chat/completions", body={"model": "m", "messages": ASK} | asked, cast_to=object)
        assert refusal.value.param == key
        await client.chat.completions.create(model="m", messages=ASK)

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error
    assert sampled(episode) == 1


async def test_sampling_settings_are_overridden_and_named(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=ASK, temperature=0.1, user="somebody", logprobs=True
        )
        assert raw.headers["x-astune-overridden"] == "temperature"
        logprobs = raw.parse().choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content
        assert "".join(token.token for token in logprobs.content).startswith("Four")

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error


async def test_an_agent_may_want_shorter_answers_and_several(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        answer = await client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=1, n=3)
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3

    episode = await played(renderer, agent, "Four and five")
    assert episode.status == "success", episode.error
    assert sampled(episode) == 3


async def test_a_repeated_request_gets_the_stored_answer_and_an_equal_one_its_own(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        base_url, key = proxy.as_oai_baseurl_apikey()
        body = {"model": "m", "messages": ASK}
        retry = {"x-stainless-retry-count": "1"}
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as client:
            url = f"{base_url}/chat/completions"
            equal = await asyncio.gather(*(client.post(url, json=body) for _ in range(2)))
            again = await asyncio.gather(*(client.post(url, json=body, headers=retry) for _ in range(3)))
            named = [await client.post(url, json=body, headers={"idempotency-key": "k"}) for _ in range(2)]
            other = await client.post(url, json=body | {"n": 2}, headers={"idempotency-key": "k"})
        assert {answer.status_code for answer in (*equal, *again, *named)} == {200}
        assert other.status_code == 400

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error
    assert sampled(episode) == 3  # two equal requests and the named one


async def test_a_key_dies_with_its_episode_and_no_other_opens_it(renderer: Renderer) -> None:
    kept: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        kept.append(proxy.as_oai_baseurl_apikey())
        await proxy.achat(ASK)

    await played(renderer, agent)
    base_url, key = kept[0]
    async with httpx.AsyncClient() as client:
        for sent in (key, "astune-guess", "x" * 1000):
            answer = await client.post(
                f"{base_url}/chat/completions",
                json={"model": "m", "messages": ASK},
                headers={"authorization": f"Bearer {sent}"},
            )
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_other_hosts_sizes_types_and_texts_are_refused(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        base_url, key = proxy.as_oai_baseurl_apikey()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        url = f"{base_url}/chat/completions"
        async with httpx.AsyncClient(headers=headers) as client:
            rebound = await client.post(url, content=b"{}", headers={"host": "evil.example"})
            crossing = await client.post(url, content=b"{}", headers={"sec-fetch-site": "cross-site"})
            assert (crossing.status_code, "other sites" in crossing.text) == (403, True)
            text = await client.post(url, content=b"{}", headers={"content-type": "text/plain"})
            broken = await client.post(url, content=b"[" * 100_000)
            huge = await client.post(url, content=b" " * (33 << 20))
            surrogate = await client.post(
                url, content=b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}'
            )
            models = await client.get(f"{base_url}/models")
        statuses = [each.status_code for each in (rebound, text, broken, huge, surrogate)]
        assert statuses == [403, 415, 400, 413, 200]  # an agent cuts a text within an emoji
        assert all("error" in json.loads(each.text) for each in (rebound, text, broken, huge))
        assert models.json()["data"][0]["streams_tokens"] is True
        await proxy.achat(ASK)

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error


async def test_a_prompt_that_does_not_fit_is_an_error_of_the_dialect_and_truncates(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        await client.chat.completions.create(model="m", messages=ASK)
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "many " * 700}])
        assert refusal.value.code == "context_length_exceeded"

    episode = await played(renderer, agent, max_model_len=600)
    assert episode.status == "truncated", episode.error


async def test_a_failing_engine_is_asked_once_and_fails_the_episode_by_its_name(renderer: Renderer) -> None:
    asked: list[int] = []

    async def agent(proxy: AstuneProxy) -> None:
        with pytest.raises(openai.InternalServerError):
            await proxy.as_openai_client().chat.completions.create(model="m", messages=ASK)

    def script(*_: object) -> list[int]:
        asked.append(1)
        raise RuntimeError("broken")

    episode = await build_stage(renderer, flow(agent), replies=script).play_one()
    assert len(asked) == 1
    assert "broken" in (episode.error or "")


def test_a_blocking_client_in_an_ordinary_function_is_answered(renderer: Renderer) -> None:
    class Flow(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> None:
            base_url, key = proxy.as_oai_baseurl_apikey("helper")
            client = openai.OpenAI(base_url=base_url, api_key=key)
            assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "Four"

    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": "Four"}], [])
    episode = asyncio.run(build_stage(renderer, Flow, replies=lambda *_: ids).play_one())
    assert episode.status == "success", episode.error
    assert {node.agent for node in episode.forest.nodes if node.sampled} == {"helper"}


async def test_an_endpoint_for_a_child_process_closes_with_its_block(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        async with proxy.endpoint() as (base_url, key):
            client = openai.AsyncOpenAI(base_url=base_url, api_key=key)
            await client.chat.completions.create(model="m", messages=ASK)
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=ASK)

    episode = await played(renderer, agent)
    assert episode.status == "success", episode.error
    assert sampled(episode) == 1


async def test_what_an_sdk_made_of_a_stream_goes_on_from_it(renderer: Renderer) -> None:
    call: Any = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            client = proxy.as_openai_client()
            async with client.chat.completions.stream(model="m", messages=ASK, tools=[ADD]) as stream:
                said: Any = (await stream.get_final_completion()).choices[0].message.model_dump()
            assert "index" in said["tool_calls"][0]
            result: Any = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "5"}
            await client.chat.completions.create(model="m", messages=[*ASK, said, result], tools=[ADD])

    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}], [ADD])
    episode = await build_stage(renderer, Flow, replies=lambda *_: ids).play_one()
    assert episode.status == "success", episode.error
    assert not [node.fork_cause for node in episode.forest.nodes if node.fork_cause]


@pytest.mark.parametrize("calls", [[], [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]])
def test_an_answer_that_a_stop_sequence_ended_is_whole_however_long_it_was(calls: list[dict[str, Any]]) -> None:
    message = {"role": "assistant", "content": "Yes.", "tool_calls": calls}
    cut = Sampled(message, (), (-0.5,), "length", 3)
    assert cut.openai_finish_reason == "length"
    assert replace(cut, stopped_by="Observation:").openai_finish_reason == ("tool_calls" if calls else "stop")
