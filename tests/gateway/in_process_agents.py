"""Agents of frameworks in the trainer's own process, over `proxy.as_openai_client()`; every answer is streamed.

A program for the frameworks' environment, which has not what astune needs: its arguments are the model's folder, then
the paths at which astune, its packages and its tests' helpers are found.
"""

from __future__ import annotations

import sys

sys.path += sys.argv[2:]

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollout_stage import build_stage
from rollout_stage import task as task_of

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.replay import faults
from astune.gateway import server
from astune.renderers import load_renderer

TEXT = "Tom has 63 pens now, since 47 and 16 are 63."
ASK = {"role": "user", "content": "47 + 16?"}
CALL = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 47, "b": 16}'}}
ANSWERS = ({"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "assistant", "content": TEXT})
NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": PARAMETERS}}
Pieces = list[str]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def openai_agents(proxy: AstuneProxy) -> Pieces:
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    model = OpenAIResponsesModel("policy", proxy.as_openai_client())
    run = Runner.run_streamed(Agent(name="calculator", tools=[function_tool(add)], model=model), ASK["content"])
    events = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
    return [event.delta for event in events if event.type == "response.output_text.delta"]


async def langgraph(proxy: AstuneProxy) -> Pieces:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    client = proxy.as_openai_client()
    model = ChatOpenAI(
        model="policy", api_key="-", root_async_client=client, async_client=client.chat.completions, stream_usage=True
    )
    parts = create_agent(model, tools=[add]).astream({"messages": [ASK]}, stream_mode="messages")
    return [part.text async for part, _ in parts if part.type == "AIMessageChunk" and part.text]


async def pydantic_ai(proxy: AstuneProxy) -> Pieces:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=proxy.as_openai_client()))
    agent = Agent(model, tools=[add])
    async with agent.run_stream(ASK["content"]) as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]


AGENTS: tuple[Callable[[AstuneProxy], Awaitable[Pieces]], ...] = (openai_agents, langgraph, pydantic_ai)


async def played(renderer: Any, agent: Callable[[AstuneProxy], Awaitable[Pieces]]) -> dict[str, Any]:
    """What came of it: the pieces of the last answer, forks, faults of a replay, the balance."""
    pieces: Pieces = []

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            pieces.extend(await agent(proxy))

    replies = [renderer.answer_ids([ASK, answer], [TOOL]) for answer in ANSWERS]
    stage = build_stage(renderer, Flow, replies=replies, max_model_len=8192)
    before = stage.engine.stats()
    groups = await stage.play([task_of()])
    (episode,) = [*groups[0].episodes, *groups[0].failed_attempts]
    return {
        "agent": agent.__name__,
        "error": episode.error,
        "pieces": pieces,
        "answers": sum(node.sampled for node in episode.forest.nodes),
        "forks": [node.fork_cause for node in episode.forest.nodes if node.fork_cause],
        "faults": list(map(str, faults(episode.forest, renderer))),
        "balance": stage.pool.balance(groups, stage.engine.stats() - before).difference,
    }


def main() -> None:
    renderer = load_renderer(Path(sys.argv[1]))
    for agent in AGENTS:
        sys.stdout.write(json.dumps(asyncio.run(played(renderer, agent))) + "\n")
    assert not server.gateway.cache_info().currsize, "a port was opened"


main()
