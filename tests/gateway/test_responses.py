"""OpenAI's Responses, asked by OpenAI's own client, whose types parse every answer and every event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from rollout_stage import build_stage, flow

from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.schema import Episode

pytestmark = pytest.mark.usefixtures("each_way")
ASK: list[Any] = [{"role": "user", "content": "How many?"}]
CALL: Any = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": None}
Agent = Callable[[openai.AsyncOpenAI], Awaitable[None]]


async def played(renderer: Renderer, agent: Agent, answer: dict[str, Any]) -> Episode:
    chat_tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
    ids: Any = renderer
    sampled = ids.answer_ids([*ASK, {"role": "assistant", **answer}], [chat_tool] if "tool_calls" in answer else [])
    workflow = flow(lambda proxy: agent(proxy.as_openai_client()))
    episode = await build_stage(renderer, workflow, replies=lambda *_: sampled).play_one()
    assert episode.status == "success", episode.error
    assert not list(faults(episode.forest, renderer))
    return episode


def forks(episode: Episode) -> list[str]:
    return [node.fork_cause for node in episode.forest.nodes if node.fork_cause]


@pytest.mark.parametrize("how", ["by its id", "by its items"])
async def test_a_conversation_goes_on_without_a_branch(renderer: Renderer, how: str) -> None:
    async def agent(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="m", input="How many?", instructions="Count.")
        assert first.output_text == "Four"
        assert first.status == "completed"
        assert first.usage is not None
        assert first.usage.output_tokens == 2
        sure: Any = {"role": "user", "content": "Sure?"}
        if how == "by its id":
            second = await client.responses.create(
                model="m", input=[sure], instructions="Count.", previous_response_id=first.id
            )
        else:
            items: Any = [*ASK, *(item.model_dump(exclude_none=True) for item in first.output), sure]
            second = await client.responses.create(model="m", input=items, instructions="Count.")
        assert second.output_text == "Four"

    episode = await played(renderer, agent, {"content": "Four"})
    assert forks(episode) == []
    assert [node.role for node in episode.forest.nodes] == ["system", "user", "assistant", "user", "assistant"]


async def test_a_call_and_its_result_go_on_without_a_branch(renderer: Renderer) -> None:
    async def agent(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="m", input=ASK, tools=[ADD], tool_choice="required")
        *_, call = first.output
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("add", '{"a": 2}')
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
        items: Any = [*ASK, *(item.model_dump(exclude_none=True) for item in first.output), result]
        await client.responses.create(model="m", input=items, tools=[ADD])
        await client.responses.create(model="m", input=[result], tools=[ADD], previous_response_id=first.id)

    episode = await played(renderer, agent, {"content": "I add.", "tool_calls": [CALL]})
    assert forks(episode) == ["sampled again"]  # both requests say the same


@pytest.mark.parametrize(
    "answer", [{"content": "Four of them"}, {"content": "I add.", "tool_calls": [CALL]}, {"content": ""}], ids=str
)
async def test_the_stream_builds_the_response_that_an_unstreamed_request_gets(
    renderer: Renderer, answer: dict[str, Any]
) -> None:
    kinds: list[str] = []
    tools: Any = [ADD] if "tool_calls" in answer else []

    async def agent(client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(model="m", input=ASK, tools=tools)
        async with client.responses.stream(model="m", input=ASK, tools=tools) as stream:
            async for event in stream:
                kinds.append(event.type)
            final = await stream.get_final_response()
        assert final.output_text == whole.output_text == answer["content"]
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        assert ("function_call" in [item.type for item in final.output]) == bool(tools)

    await played(renderer, agent, answer)
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") > 0


async def test_a_short_answer_is_incomplete(renderer: Renderer) -> None:
    async def agent(client: openai.AsyncOpenAI) -> None:
        answer = await client.responses.create(model="m", input=ASK, max_output_tokens=1)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"

    await played(renderer, agent, {"content": "Four of them"})


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"conversation": "c"}, "conversation"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}]},
            "messages.0.tool_calls.0.function.name",
        ),
    ],
    ids=str,
)
async def test_what_is_not_offered_is_refused_by_its_key(renderer: Renderer, asked: dict[str, Any], key: str) -> None:
    async def agent(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.post("/responses", body={"model": "m", "input": ASK} | asked, cast_to=object)
        assert refusal.value.param == key
        await client.responses.create(model="m", input=ASK)

    await played(renderer, agent, {"content": "Four"})
