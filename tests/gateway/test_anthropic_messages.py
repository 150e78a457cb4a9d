"""An episode's model asked by Anthropic's own client; it is one conversation with what OpenAI's client asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import pytest
from rollout_stage import build_stage, flow

from astune import AstuneProxy
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.schema import Episode

pytestmark = pytest.mark.usefixtures("each_way")
ASK: list[Any] = [{"role": "user", "content": "How many?"}]
SYSTEM = "Be brief."
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
USE: Any = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
ADD_FOR_OPENAI: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}


def played(renderer: Any, agent: Callable[[AstuneProxy], Awaitable[None]], answer: dict[str, Any]) -> Episode:
    """The only episode of an agent whose model always gives this answer."""
    tools = [ADD_FOR_OPENAI] if answer.get("tool_calls") else []
    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": "", **answer}], tools)
    return asyncio.run(build_stage(renderer, flow(agent), replies=lambda *_: ids, max_model_len=800).play_one())


def test_both_dialects_ask_one_conversation(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        theirs = proxy.as_anthropic_client()
        first = await theirs.messages.create(model="m", max_tokens=50, system=SYSTEM, messages=ASK)
        assert [block.text for block in first.content if block.type == "text"] == ["Four"]
        assert first.stop_reason == "end_turn"
        assert first.usage.output_tokens == 2
        said: Any = {"role": "assistant", "content": first.content}
        more: Any = {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}
        await theirs.messages.create(model="m", max_tokens=50, system=SYSTEM, messages=[*ASK, said, more])
        openais: list[Any] = [
            {"role": "system", "content": SYSTEM},
            *ASK,
            {"role": "assistant", "content": "Four"},
            {"role": "user", "content": "Sure?"},
        ]
        await proxy.as_openai_client().chat.completions.create(model="m", messages=openais)

    episode = played(renderer, agent, {"content": "Four"})
    assert episode.status == "success", episode.error
    causes = [node.fork_cause for node in episode.forest.nodes if node.fork_cause]
    assert causes == ["sampled again"]  # the third call is the second one's prompt
    assert len([node for node in episode.forest.nodes if not node.sampled]) == 3
    assert not list(faults(episode.forest, renderer))


def test_an_empty_answer_is_sent_back_as_it_came(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_anthropic_client()
        first = await client.messages.create(model="m", max_tokens=50, messages=ASK)
        assert first.content == []
        said: Any = {"role": "assistant", "content": first.content}
        more: Any = {"role": "user", "content": "Say something."}
        await client.messages.create(model="m", max_tokens=50, messages=[*ASK, said, more])

    episode = played(renderer, agent, {})
    assert episode.status == "success", episode.error
    assert [node.role for node in episode.forest.path(len(episode.forest.nodes) - 1)[-4:]] == [
        *("user", "assistant", "user", "assistant")
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_and_its_result_go_on_without_a_branch(streamed: bool, renderer: Renderer) -> None:
    events: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_anthropic_client()
        asked: Any = {"model": "m", "max_tokens": 50, "tools": [ADD]}
        if streamed:
            async with client.messages.stream(messages=ASK, **asked) as stream:
                async for event in stream:
                    events.append(event.type)
                first = await stream.get_final_message()
        else:
            first = await client.messages.create(messages=ASK, **asked)
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("add", {"a": 2})
        said: Any = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
        for block in said["content"]:
            block.pop("caller", None)
        await client.messages.create(messages=[*ASK, said, {"role": "user", "content": [result]}], **asked)

    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    episode = played(renderer, agent, {"tool_calls": [call]})
    assert episode.status == "success", episode.error
    assert [node.fork_cause for node in episode.forest.nodes if node.fork_cause] == []
    assert ("message_stop" in events) == streamed


def test_an_integer_beyond_64_bits_comes_back_as_it_was_sampled(renderer: Renderer) -> None:
    long = 2**70 + 1

    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_anthropic_client()
        asked: Any = {"model": "m", "max_tokens": 50, "tools": [ADD]}
        first = await client.messages.create(messages=ASK, **asked)
        [call] = [block for block in first.content if block.type == "tool_use"]
        assert call.input == {"a": long}
        said: Any = {"role": "assistant", "content": [{**USE, "id": call.id, "input": call.input}]}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
        await client.messages.create(messages=[*ASK, said, {"role": "user", "content": [result]}], **asked)

    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {long}}}'}}
    episode = played(renderer, agent, {"tool_calls": [call]})
    assert episode.status == "success", episode.error
    assert [node.fork_cause for node in episode.forest.nodes if node.fork_cause] == []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0"),
        (
            {"messages": [{"role": "assistant", "content": [{**USE, "name": ""}]}]},
            "function.name is wrong: String should",
        ),
        ({"container": "c"}, "container"),
        ({"tool_choice": {"type": "sometimes"}, "tools": [ADD]}, "sometimes"),
    ],
)
def test_what_is_not_offered_is_refused_in_their_shape(asked: dict[str, Any], named: str, renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_anthropic_client()
        body: Any = {"model": "m", "max_tokens": 5, "messages": ASK} | asked
        with pytest.raises(anthropic.BadRequestError) as refusal:
            await client.post("/v1/messages", body=body, cast_to=object)
        told: Any = refusal.value.body
        assert told["error"]["type"] == "invalid_request_error"
        assert named in told["error"]["message"]
        await client.messages.create(model="m", max_tokens=50, messages=ASK, extra_body={"temperature": 0.3})

    episode = played(renderer, agent, {"content": "Four"})
    assert episode.status == "success", episode.error


def test_a_prompt_that_does_not_fit_and_a_dead_key_have_their_errors(renderer: Renderer) -> None:
    clients: list[anthropic.AsyncAnthropic] = []

    async def agent(proxy: AstuneProxy) -> None:
        clients.append(proxy.as_anthropic_client())
        await clients[0].messages.create(model="m", max_tokens=50, messages=ASK)
        long: Any = [{"role": "user", "content": "many " * 900}]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await clients[0].messages.create(model="m", max_tokens=50, messages=long)

    episode = played(renderer, agent, {"content": "Four"})
    assert episode.status == "truncated", episode.error

    async def late() -> None:
        with pytest.raises(anthropic.AuthenticationError):
            await clients[0].messages.create(model="m", max_tokens=50, messages=ASK)

    asyncio.run(late())


def test_the_tokens_of_a_prompt_are_counted_as_they_would_be_read(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        client = proxy.as_anthropic_client()
        counted = await client.messages.count_tokens(model="m", system=SYSTEM, messages=ASK, tools=[ADD])
        message = await client.messages.create(model="m", max_tokens=50, system=SYSTEM, messages=ASK, tools=[ADD])
        assert counted.input_tokens == message.usage.input_tokens
        with pytest.raises(anthropic.BadRequestError) as refusal:
            await client.messages.count_tokens(model="m", messages=ASK, extra_body={"betas_of_mine": 1})
        assert "betas_of_mine" in str(refusal.value)

    episode = played(renderer, agent, {"content": "Four"})
    assert episode.status == "success", episode.error
    assert sum(node.sampled for node in episode.forest.nodes) == 1
