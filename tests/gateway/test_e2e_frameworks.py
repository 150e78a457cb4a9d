"""Each agent of `tutorial/example_frameworks` plays an episode with its real framework: `make e2e-agents`.

The model's answers are scripted, a call of a tool and then an answer, so that each framework's own loop is what runs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of

from astune.config.schema import ProgramConfig
from astune.context_tracker.replay import faults
from astune.renderers import Renderer
from astune.workflow.program import program_workflow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tutorial" / "example_frameworks"
PYTHON = ROOT / ".venv-agents" / "bin" / "python"
ASK = {"role": "user", "content": "Hi"}
AGENTS = (
    "openai_sdk",
    "anthropic_sdk",
    "openai_agents",
    "langgraph_agent",
    "pydantic_ai_agent",
    "mcp_agent",
    "autogen_agent",
    "smolagents_agent",
)

pytestmark = pytest.mark.e2e


def tool(name: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [tool("add", a="integer", b="integer"), tool("final_answer", answer="string")]


def call(name: str, **given: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": function}]}


def play(renderer: Any, command: Sequence[str], *answers: dict[str, Any]) -> Any:
    replies = [renderer.answer_ids([ASK, answer], TOOLS) for answer in answers]
    stage = build_stage(
        renderer,
        program_workflow(ProgramConfig(command=list(command))),
        replies=replies,
        max_model_len=8192,
        episode_timeout_s=120,
    )
    (group,) = asyncio.run(stage.play([task_of()]))
    (episode,) = group.episodes or group.failed_attempts
    assert episode.status == "success", episode.error
    assert not list(faults(episode.forest, renderer))
    return episode


@pytest.mark.parametrize("agent", AGENTS)
def test_a_frameworks_agent_calls_its_tool_and_is_one_conversation(agent: str, renderer: Renderer) -> None:
    if not PYTHON.exists():
        pytest.skip("scripts/make_peer_env.sh agents")
    last = call("final_answer", answer="63") if agent == "smolagents_agent" else {"role": "assistant", "content": "63"}
    episode = play(renderer, [str(PYTHON), str(FOLDER / f"{agent}.py")], call("add", a=47, b=16), last)
    assert episode.judge_inputs["final_answer"] == "63"
    answers = [node for node in episode.forest.nodes if node.sampled]
    assert len(answers) == 2
    assert [node.fork_cause for node in episode.forest.nodes if node.fork_cause] == []
    assert answers[1].parent is not None
    result = next(node for node in episode.forest.nodes if node.role in ("tool", "user") and "63" in str(node.content))
    assert result.parent == answers[0].node_id


def test_curl_alone_is_an_agent(renderer: Renderer) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    episode = play(renderer, [str(FOLDER / "curl_agent.sh")], {"role": "assistant", "content": "63"})
    assert episode.judge_inputs["final_answer"] == "63"
