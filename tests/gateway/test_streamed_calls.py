"""Tool calls in streams: in pieces where an answer that breaks off is never read, in each dialect's order of events.

What a client put together is, byte for byte, what is recorded, and what an unstreamed request gets.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from stepping import ASK, Stepping, played

from astune import AstuneProxy
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.schema import Episode

pytestmark = pytest.mark.usefixtures("each_way")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK: dict[str, Any] = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
CITIES = (
    r"Rome, \"the eternal city\", with its seven hills and all that lies around it, from the coast to the mountains",
    r"漢字 \ud83d\ude42 and\nmore",
)
CALLS = [f'<tool_call>\n{{"name": "look", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in CITIES]
ARGUMENTS = [json.dumps({"city": json.loads(f'"{city}"')}, ensure_ascii=False) for city in CITIES]
TEXT = "I look.\n" + "\n".join(CALLS)
BROKEN = f"{TEXT[:-14]},,</tool_call>"

Seen = list[tuple[str, str, str]]
"""Events: their kind, what they add, and of a call its id."""
Reads = Callable[[AstuneProxy, Seen, Stepping], Awaitable[Any]]


def allow_more(engine: Stepping, seen: Seen) -> None:
    """More is sampled because a piece came: enough for the next one, and all when there were several."""
    several = sum(kind == "arguments 0" for kind, _, _ in seen) >= 5
    engine.allow(1_000 if several else 12 if seen[-1][0] == "begin 0" else 2)


async def by_chat(proxy: AstuneProxy, seen: Seen, engine: Stepping) -> list[Any]:
    client = proxy.as_openai_client()
    asked: Any = {"model": "m", "messages": ASK, "tools": [{"type": "function", "function": LOOK}]}
    async with client.chat.completions.stream(**asked) as stream:
        async for event in stream:
            if event.type != "chunk" or not event.chunk.choices:
                continue
            choice = event.chunk.choices[0]
            if choice.delta.content:
                seen.append(("text", choice.delta.content, ""))
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                kind = f"{'begin' if call.id else 'arguments'} {call.index}"
                seen.append((kind, call.function.name or call.function.arguments or "", call.id or ""))
                allow_more(engine, seen)
            if choice.finish_reason:
                seen.append(("end", choice.finish_reason, ""))
        message = (await stream.get_final_completion()).choices[0].message
    assert message.tool_calls is not None
    return [message.content, *((call.id, call.function.name, call.function.arguments) for call in message.tool_calls)]


async def by_responses(proxy: AstuneProxy, seen: Seen, engine: Stepping) -> list[Any]:
    tools: Any = [{"type": "function", "strict": None, **LOOK}]
    async with proxy.as_openai_client().responses.stream(model="m", input=ASK, tools=tools) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                seen.append(("text", event.delta, ""))
            elif event.type == "response.output_item.added" and event.item.type == "function_call":
                seen.append((f"begin {event.output_index - 1}", event.item.name, event.item.call_id))
                assert event.item.arguments == ""
                allow_more(engine, seen)
            elif event.type == "response.function_call_arguments.delta":
                seen.append((f"arguments {event.output_index - 1}", event.delta, ""))
                allow_more(engine, seen)
            elif event.type == "response.function_call_arguments.done":
                assert event.arguments == ARGUMENTS[event.output_index - 1]
            elif event.type == "error":  # the SDK gives it to its reader, as it came
                assert event.code == "malformed_tool_call"
                return [event]
            elif event.type == "response.completed":
                seen.append(("end", "tool_calls", ""))
        final = await stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    return [final.output_text, *((call.call_id, call.name, call.arguments) for call in calls)]


async def by_messages(proxy: AstuneProxy, seen: Seen, engine: Stepping) -> list[Any]:
    client: anthropic.AsyncAnthropic = proxy.as_anthropic_client()
    tools: Any = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]
    spelled: dict[int, str] = {}
    async with client.messages.stream(model="m", max_tokens=999, messages=ASK, tools=tools) as stream:
        async for event in stream:
            if event.type == "content_block_start" and event.content_block.type == "tool_use":
                seen.append((f"begin {event.index - 1}", event.content_block.name, event.content_block.id))
                allow_more(engine, seen)
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                seen.append(("text", event.delta.text, ""))
            elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                seen.append((f"arguments {event.index - 1}", event.delta.partial_json, ""))
                spelled[event.index] = spelled.get(event.index, "") + event.delta.partial_json
                allow_more(engine, seen)
            elif event.type == "message_delta":
                seen.append(("end", "tool_calls" if event.delta.stop_reason == "tool_use" else "", ""))
        message = await stream.get_final_message()
    text, *calls = message.content
    assert text.type == "text"
    for call, arguments in zip(calls, spelled.values(), strict=True):
        assert call.type == "tool_use"
        assert call.input == json.loads(arguments)
    return [
        text.text,
        *((call.id, call.name, spelled[n]) for n, call in enumerate(calls, 1) if call.type == "tool_use"),
    ]


each_dialect = pytest.mark.parametrize("reads", [by_chat, by_responses, by_messages], ids=lambda reads: reads.__name__)


async def streamed(renderer: Any, reads: Reads, policy: str, text: str = TEXT) -> tuple[Seen, Any, Episode]:
    """Events that came, what the client put together or was refused with, and the episode.

    Unless calls are read as text, the engine stops in the first one until a piece of it came.
    """

    def tokens(text: str) -> list[int]:
        return renderer.answer_ids([*ASK, {"role": "assistant", "content": text}], [])

    engine = Stepping(tokens(text))
    engine.allow(1_000 if policy == "as_text" else len(tokens(text[: text.index("city")])))
    seen: Seen = []
    got: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        try:
            got.extend(await reads(proxy, seen, engine))
        except (openai.APIError, anthropic.APIError) as refusal:
            got.append(refusal)

    episode = await played(renderer, engine, agent, call_timeout_s=60, malformed_tool_calls=policy)
    assert not list(faults(episode.forest, renderer))
    return seen, got, episode


def recorded(episode: Episode) -> list[Any]:
    (node,) = [node for node in episode.forest.nodes if node.sampled]
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in node.tool_calls]
    return [node.content, *calls]


@each_dialect
@pytest.mark.parametrize("policy", ["return_error", "end_episode"])
async def test_arguments_come_while_they_are_sampled(renderer: Any, reads: Reads, policy: str) -> None:
    """The engine samples on only because a piece of a call came: were they sent whole, it would wait for ever."""
    seen, got, episode = await streamed(renderer, reads, policy)
    assert episode.status == "success", episode.error
    assert got == recorded(episode)
    assert [got[0], *(call[1:] for call in got[1:])] == ["I look.", *(("look", each) for each in ARGUMENTS)]
    assert in_order(seen) == ["text", "begin 0", "arguments 0", "begin 1", "arguments 1", "end"]
    assert sum(kind == "arguments 0" for kind, _, _ in seen) >= 5, seen
    assert seen[-1][1] == "tool_calls"
    assert [added for kind, added, _ in seen if kind.startswith("begin")] == ["look", "look"]
    assert [call_id for kind, _, call_id in seen if kind.startswith("begin")] == [call[0] for call in got[1:]]


@each_dialect
async def test_as_text_calls_come_whole_with_the_end(renderer: Any, reads: Reads) -> None:
    seen, got, episode = await streamed(renderer, reads, "as_text")
    assert episode.status == "success", episode.error
    assert got == recorded(episode)
    assert [added for kind, added, _ in seen if kind.startswith("arguments")] == ARGUMENTS
    assert in_order(seen) == ["text", "begin 0", "arguments 0", "begin 1", "arguments 1", "end"]


@each_dialect
async def test_a_call_that_breaks_off_ends_the_stream_in_an_error_and_is_trained(renderer: Any, reads: Reads) -> None:
    seen, (refusal,), episode = await streamed(renderer, reads, "return_error", BROKEN)
    assert "cannot be read" in refusal.message
    assert "arguments 0" in in_order(seen), "pieces were sent before it broke off"
    assert "end" not in in_order(seen)
    assert episode.status == "success", episode.error
    (node,) = [node for node in episode.forest.nodes if node.sampled]
    assert node.trainable
    assert node.malformed_calls
    assert episode.metrics["malformed_calls"] == 1


@each_dialect
async def test_a_call_that_breaks_off_is_text_where_it_is_to_be(renderer: Any, reads: Reads) -> None:
    seen, got, episode = await streamed(renderer, reads, "as_text", BROKEN)
    assert got == recorded(episode)
    assert len(got) == 2, "the first call is one, and the second one text"
    assert got[0].startswith("I look.\n<tool_call>")
    assert in_order(seen) == ["text", "begin 0", "arguments 0", "end"]


async def test_an_unstreamed_request_gets_the_same_with_an_id_of_its_own(renderer: Renderer) -> None:
    """The second answer to one prompt has other ids, so that an agent goes on from the one that it names."""

    async def twice(proxy: AstuneProxy, seen: Seen, engine: Stepping) -> list[Any]:
        first = await by_chat(proxy, seen, engine)
        asked: Any = {"model": "m", "messages": ASK, "tools": [{"type": "function", "function": LOOK}]}
        second = (await proxy.as_openai_client().chat.completions.create(**asked)).choices[0].message
        assert [second.content, *(call.function.arguments for call in second.tool_calls)] == ["I look.", *ARGUMENTS]
        assert {call.id for call in second.tool_calls}.isdisjoint(call[0] for call in first[1:])
        return first

    _, got, episode = await streamed(renderer, twice, "return_error")
    assert episode.status == "success", episode.error
    assert len(got) == 3


def in_order(seen: Seen) -> list[str]:
    """The kinds of events, each once for those that follow each other."""
    kinds = [kind for kind, _, _ in seen]
    return [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind]
