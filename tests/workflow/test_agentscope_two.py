"""Agents of AgentScope 2.x in the trainer's own process: `make e2e-agentscope` runs these with the real package."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from pydantic import BaseModel
from rollout_stage import build_stage

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.schema import Episode


def _is_there() -> bool:
    try:
        return version("agentscope").startswith("2.")
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not _is_there(), reason="AgentScope 2.x is in .venv-agentscope-2.0.11 alone")
ASK: dict[str, Any] = {"role": "user", "content": "?"}


def call(name: str, *given: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": str(n), "type": "function", "function": {"name": name, "arguments": json.dumps(each)}}
        for n, each in enumerate(given)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}


TOOLS = [tool(name) for name in ("add", "GenerateStructuredOutput", "generate_structured_output")]


def played(renderer: Any, workflow: type[Workflow], *answers: dict[str, Any], **rollout: Any) -> Episode:
    replies = [renderer.answer_ids([ASK, answer], TOOLS) for answer in answers]
    stage = build_stage(renderer, workflow, replies=replies, **{"max_model_len": 8192} | rollout)
    episode = asyncio.run(stage.play_one())
    assert not list(faults(episode.forest, renderer))
    return episode


def causes(episode: Episode) -> list[str]:
    return [node.fork_cause for node in episode.forest.nodes if node.fork_cause]


def agent_of(model: Any, **more: Any) -> Any:
    tools = import_module("agentscope.tool")

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    toolkit = tools.Toolkit([tools.FunctionTool(add, is_read_only=True)])
    return import_module("agentscope.agent").Agent("solver", "You calculate.", model, toolkit, **more)


def user(text: str) -> Any:
    return import_module("agentscope.message").UserMsg("user", text)


def test_an_agent_streams_calls_tools_in_parallel_and_is_one_conversation(renderer: Renderer) -> None:
    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            answer = await agent_of(proxy).reply(user("47+16 and 1+2?"))
            proxy.update_judge_input_dictionary(final_answer=answer.get_text_content())

    episode = played(renderer, Flow, call("add", {"a": 47, "b": 16}, {"a": 1, "b": 2}), say("63 and 3"))
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "63 and 3"
    results = [node.content for node in episode.forest.nodes if node.role == "tool"]
    assert sorted(results) == ["3", "63"]
    assert causes(episode) == []


def test_two_agents_have_their_own_names_and_targets(renderer: Renderer) -> None:
    class Flow(Workflow):
        trainable_targets = ("writer",)

        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            draft = await agent_of(proxy.as_agentscope_model("writer")).reply(user("Write."))
            await agent_of(proxy.as_agentscope_model("critic")).reply(user(draft.get_text_content()))

    episode = played(renderer, Flow, say("A draft"), say("Good"))
    assert episode.status == "success", episode.error
    answers = [node for node in episode.forest.nodes if node.sampled]
    assert [(node.agent, node.trainable) for node in answers] == [("writer", True), ("critic", False)]
    assert causes(episode) == ["another agent"]


def test_what_an_agent_asks_of_its_model_is_there(renderer: Renderer) -> None:
    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            assert proxy.context_size == 4096  # type: ignore[attr-defined]
            with pytest.raises(AttributeError):
                proxy.no_such_thing  # type: ignore[attr-defined] # noqa: B018
            assert (await proxy.achat([{"role": "user", "content": "Hi"}]))["content"] == "Four"

    episode = played(renderer, Flow, say("Four"), max_model_len=4096)
    assert episode.status == "success", episode.error


class Sum(BaseModel):
    total: int


def test_a_structured_reply_is_a_call_of_its_own_tool(renderer: Renderer) -> None:
    said: list[Any] = []

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            agent = agent_of(proxy)
            said.append((await agent.reply(user("47+16?"), structured_schema=Sum)).structured_output)
            said.append((await agent.reply(user("Sure?"))).get_text_content())

    episode = played(renderer, Flow, call("GenerateStructuredOutput", {"total": 63}), say("Yes"))
    assert episode.status == "success", episode.error
    assert said == [{"total": 63}, "Yes"]
    assert causes(episode) == ["tools changed"]


def test_a_compressed_context_is_asked_for_by_a_tool_and_then_replaces_the_history(renderer: Renderer) -> None:
    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            config = import_module("agentscope.agent").ContextConfig(
                trigger_ratio=0.1,
                reserve_ratio=0.02,
                context_buffer_ratio=0.05,
                summary_schema=Sum.model_json_schema(),
                summary_template="So far: {total}",
            )
            await agent_of(proxy, context_config=config).reply(user("many words " * 500))

    episode = played(renderer, Flow, call("generate_structured_output", {"total": 63}), say("63"))
    assert episode.status == "success", episode.error
    assert "So far: 63" in [node.content for node in episode.forest.nodes]
    assert causes(episode) == ["tools changed"]


def test_an_agent_whose_events_are_streamed_is_one_conversation(renderer: Renderer) -> None:
    texts: list[str] = []

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            async for event in agent_of(proxy).reply_stream(user("47+16?")):
                texts.extend(filter(None, [getattr(event, "delta", None)]))

    episode = played(renderer, Flow, call("add", {"a": 47, "b": 16}), say("The sum of both is 63."))
    assert episode.status == "success", episode.error
    assert "".join(texts).endswith("The sum of both is 63.")
    assert causes(episode) == []
