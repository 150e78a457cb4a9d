"""What AgentScope 1.x's agents do beside plain turns, and why their conversations branch where they do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter, OpenAIMultiAgentFormatter
from agentscope.message import Msg, TextBlock
from agentscope.pipeline import MsgHub, stream_printing_messages
from agentscope.plan import PlanNotebook
from agentscope.tool import Toolkit, ToolResponse
from pydantic import BaseModel
from rollout_stage import build_stage, flow

from astune import AstuneProxy
from astune.context_tracker.replay import faults
from astune.renderers import Renderer, load_renderer
from astune.schema import Episode

ASK: dict[str, Any] = {"role": "user", "content": "?"}
Message = dict[str, Any]
VERSION = tuple(map(int, version("agentscope").split(".")[:3]))
FINISHES_BY_CALL = VERSION == (1, 0, 7)
"""Every answer is a call of the finish function, which is always offered."""


@pytest.fixture(scope="module")
def renderer(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)


class Sum(BaseModel):
    total: int


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(name: str, *given: Message) -> Message:
    calls = [
        {"id": str(n), "type": "function", "function": {"name": name, "arguments": json.dumps(each)}}
        for n, each in enumerate(given)
    ]
    return say("") | {"tool_calls": calls}


def tool(name: str) -> Message:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}


def solver(model: Any, name: str = "solver", formatter: Any = None, **more: Any) -> ReActAgent:
    def add(a: int, b: int) -> ToolResponse:
        """Add two numbers."""
        return ToolResponse([TextBlock(type="text", text=str(a + b))])

    toolkit = Toolkit()
    toolkit.register_tool_function(add)
    agent = ReActAgent(name, "You calculate.", model, formatter or OpenAIChatFormatter(), toolkit, **more)
    agent.set_console_output_enabled(False)
    return agent


def user(text: str) -> Msg:
    return Msg("user", text, "user")


def played(renderer: Any, agent: Callable[[AstuneProxy], Awaitable[None]], *answers: Message) -> Episode:
    """The episode, which replays and whose tokens are accounted for."""
    names = {each["function"]["name"] for answer in answers for each in answer.get("tool_calls", ())}
    replies = [renderer.answer_ids([ASK, answer], [tool(name) for name in names]) for answer in answers]
    stage = build_stage(renderer, flow(agent), replies=replies, max_model_len=8192)
    episode = asyncio.run(stage.play_one())
    assert episode.status == "success", episode.error
    assert sum(node.sampled for node in episode.forest.nodes) == len(answers)
    assert not list(faults(episode.forest, renderer))
    return episode


def causes(episode: Episode) -> list[str]:
    return [node.fork_cause for node in episode.forest.nodes if node.fork_cause]


def results(episode: Episode) -> list[str]:
    return [node.content for node in episode.forest.nodes if node.role == "tool"]


def test_an_agent_whose_messages_are_streamed_is_one_conversation(renderer: Renderer) -> None:
    shown: list[str | None] = []

    async def agent(proxy: AstuneProxy) -> None:
        one = solver(proxy)
        async for message, _ in stream_printing_messages([one], one(user("47+16?"))):
            shown.append(message.get_text_content())

    episode = played(renderer, agent, call("add", {"a": 47, "b": 16}), say("63"))
    assert shown[-1] == "63"
    assert causes(episode) == []


def test_parallel_tool_calls_are_one_conversation(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        await solver(proxy, parallel_tool_calls=True)(user("47+16 and 1+2?"))

    episode = played(renderer, agent, call("add", {"a": 47, "b": 16}, {"a": 1, "b": 2}), say("63 and 3"))
    assert sorted(results(episode)) == ["3", "63"]
    assert causes(episode) == []


def test_a_hub_writes_what_was_said_into_one_message_that_grows(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        formatter = OpenAIMultiAgentFormatter()
        ann, bob = (solver(proxy.as_agentscope_model(name), name, formatter) for name in ("ann", "bob"))
        async with MsgHub([ann, bob], announcement=user("Introduce yourselves.")):
            for one in (ann, bob, ann):
                await one()

    episode = played(renderer, agent, say("I am Ann"), say("I am Bob"), say("Hello Bob"))
    assert [node.agent for node in episode.forest.nodes if node.sampled] == ["ann", "bob", "ann"]
    assert "bob: I am Bob" in episode.forest.nodes[-2].content
    edits = [] if FINISHES_BY_CALL else ["message edited"]  # a call's result begins another message
    assert causes(episode) == ["another agent", *edits]


def test_a_structured_model_changes_the_tools_for_one_reply(renderer: Renderer) -> None:
    said: list[Any] = []

    async def agent(proxy: AstuneProxy) -> None:
        one = solver(proxy)
        said.append((await one(user("47+16?"), structured_model=Sum)).metadata)
        said.append((await one(user("Sure?"))).get_text_content())

    finish = call("generate_response", {"response": "63", "total": 63} if FINISHES_BY_CALL else {"total": 63})
    episode = played(renderer, agent, finish, *([] if FINISHES_BY_CALL else [say("63")]), say("Yes"))
    assert said == [{"total": 63}, "Yes"]
    assert causes(episode) == ([] if FINISHES_BY_CALL else ["tools changed", "tools changed"])


def test_hints_of_a_plan_are_in_one_prompt_only(renderer: Renderer) -> None:
    async def agent(proxy: AstuneProxy) -> None:
        await solver(proxy, plan_notebook=PlanNotebook())(user("47+16?"))

    task = {"name": "add", "description": "47+16", "expected_outcome": "a sum", "outcome": None, "state": "todo"}
    plan = {"name": "sum", "description": "a sum", "expected_outcome": "63", "subtasks": [task]}
    episode = played(renderer, agent, call("create_plan", plan), call("add", {"a": 47, "b": 16}), say("63"))
    assert results(episode) == ["Plan 'sum' created successfully.", "63"]
    assert causes(episode) == ["history replaced", "message inserted"]


@pytest.mark.skipif(not hasattr(ReActAgent, "CompressionConfig"), reason="this version compresses nothing")
def test_a_compressed_memory_is_asked_for_without_tools_and_then_replaces_the_history(renderer: Renderer) -> None:
    from agentscope.token import CharTokenCounter

    async def agent(proxy: AstuneProxy) -> None:
        config = ReActAgent.CompressionConfig(
            enable=True,
            agent_token_counter=CharTokenCounter(),
            trigger_threshold=200,
            keep_recent=1,
            summary_schema=Sum,
            summary_template="So far: {total}",
        )
        one = solver(proxy, compression_config=config)
        await one(user("47+16? " * 40))
        await one(user("And 1+2?"))

    episode = played(renderer, agent, say("63"), say('{"total": 63}'), say("3"))
    assert "So far: 63" in [node.content for node in episode.forest.nodes]
    keeps_question = VERSION < (1, 0, 21)  # what was asked stays behind the summary
    assert causes(episode) == ["tools changed", "message inserted" if keeps_question else "message edited"]
