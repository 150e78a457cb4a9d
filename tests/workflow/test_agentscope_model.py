"""The proxy as a model of AgentScope 1.x, at its own door: what goes in, and what comes out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import agentscope.formatter
import pytest
from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter, OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.tool import Toolkit, ToolResponse
from proxy_stage import TASK, stage_proxy

from astune import AstuneProxy, Environment, EnvState, EnvStep
from astune.context_tracker import ContextTracker
from astune.env_service import EmbeddedHandle
from astune.renderers import Renderer
from astune.schema import WorkflowError, install_extra

HELLO = [100, 101, 102]


class Echo(Environment):
    """Repeats, and ends at 'stop'."""

    def get_init_state(self) -> EnvState:
        return EnvState([])

    def step(self, action: dict[str, Any]) -> EnvStep:
        said = action["content"]
        return EnvStep([{"role": "user", "content": f"echo {said}"}], 1.0, said == "stop", {"n": 1})

    def evaluate(self, sparse: bool = True) -> float:
        return 1.0


async def new_proxy(
    renderer: Renderer, *, answers: Sequence[list[int]] = (), disable_tools: bool = False
) -> tuple[AstuneProxy, ContextTracker]:
    """The model says `answers`, one a call, and then only HELLO."""
    left = list(answers)
    environment = EmbeddedHandle(Echo, TASK, 0)
    await environment.create()
    return stage_proxy(renderer, lambda *_: left.pop(0) if left else HELLO, environment, disable_tools=disable_tools)


async def test_the_answer_is_a_chat_response_with_one_text_block(renderer: Renderer) -> None:
    proxy, tracker = await new_proxy(renderer)
    response = await proxy([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], tools=[], tool_choice=None)
    assert isinstance(response, ChatResponse)
    assert response.content == [{"type": "text", "text": renderer.decode(HELLO)}]
    assert (proxy.model_name, proxy.stream) == ("smol", False)
    [asked, answer] = tracker.forest.nodes
    assert response.usage is not None
    assert response.usage.input_tokens == len(asked.token_ids) + len(answer.prompt_delta)
    assert response.usage.output_tokens == len(HELLO) + 1  # its end
    assert response.usage.time > 0


@pytest.mark.parametrize("formatter", [OpenAIChatFormatter, DashScopeChatFormatter])
async def test_an_agent_of_many_turns_stays_one_timeline(renderer: Renderer, formatter: Any) -> None:
    proxy, tracker = await new_proxy(renderer)
    agent = ReActAgent("solver", "Be brief.", proxy, formatter())
    for turn in range(4):
        reply = await agent(Msg("user", f"turn {turn}", "user"))
        assert reply.get_text_content() == renderer.decode(HELLO)
    [timeline] = tracker.forest.timelines()
    assert timeline.n_trained == 4 * (len(HELLO) + 1)
    assert len(tracker.forest.nodes) == 1 + 2 * 4


async def test_the_memory_of_agentscope_1_0_7_is_read_as_what_the_model_wrote(renderer: Renderer) -> None:
    """AgentScope 1.0.7 offers `generate_response` always, and stores a plain answer as a call of it (a recording)."""
    finish = {
        "type": "function",
        "function": {
            "name": "generate_response",
            "parameters": {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]},
        },
    }
    proxy, tracker = await new_proxy(renderer)
    history: list[dict[str, Any]] = [
        {"role": "system", "name": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "name": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    response = await proxy(history, tools=[finish])
    text = response.content[0]["text"]
    function = {"name": "generate_response", "arguments": json.dumps({"response": text})}
    history += [
        {
            "role": "assistant",
            "name": "a",
            "content": None,
            "tool_calls": [{"id": "x", "type": "function", "function": function}],
        },
        {
            "role": "tool",
            "tool_call_id": "x",
            "content": "Successfully generated response.",
            "name": "generate_response",
        },
        {"role": "assistant", "name": "a", "content": [{"type": "text", "text": text}]},
        {"role": "user", "name": "user", "content": [{"type": "text", "text": "Again"}]},
    ]
    await proxy(history, tools=[finish])
    assert len(tracker.forest.timelines()) == 1
    assert [node.role for node in tracker.forest.nodes] == ["system", "user", "assistant", "user", "assistant"]


async def test_a_complaint_of_agentscope_1_0_7_about_a_plain_answer_is_read_behind_what_the_model_wrote(
    renderer: Renderer,
) -> None:
    """Where its agent wants fields beside the response, and the call could not be forced, as an answer that was cut."""
    proxy, tracker = await new_proxy(renderer)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    text = (await proxy(history)).content[0]["text"]
    for call_id, content in (("x", [{"text": None}]), ("y", None)):
        function = {"name": "generate_response", "arguments": json.dumps({"response": text})}
        call = {"id": call_id, "type": "function", "function": function}
        history += [
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "Arguments Validation Error: result is missing"},
        ]
        await proxy(history)
    assert len(tracker.forest.timelines()) == 1
    assert [node.role for node in tracker.forest.nodes] == ["user", *["assistant", "user"] * 2, "assistant"]
    assert tracker.forest.nodes[2].content == "Arguments Validation Error: result is missing"


async def test_a_structured_reply_of_agentscope_1_0_7_is_a_forced_call_that_stays_as_the_model_wrote_it(
    renderer: Renderer, tokenizer: Any
) -> None:
    """1.0.7 never says `tool_choice`; behind the call it stores its own copy of the response (a recording)."""
    fields = {"response": {"type": "string"}, "result": {"type": "string"}}
    finish = {
        "name": "generate_response",
        "parameters": {"type": "object", "properties": fields, "required": list(fields)},
    }
    tools = [{"type": "function", "function": finish}]
    written = '<tool_call>\n{"name": "generate_response", "arguments": {"response": "4", "result": "4"}}\n</tool_call>'
    proxy, tracker = await new_proxy(renderer, answers=[tokenizer.encode(written)])
    history: list[dict[str, Any]] = [{"role": "user", "content": "2+2?"}]
    [block] = (await proxy(history, tools=tools)).content
    assert (block["name"], block["input"]) == ("generate_response", {"response": "4", "result": "4"})
    assert tracker.forest.nodes[-1].constraint is not None, "its form was forced"
    function = {"name": "generate_response", "arguments": json.dumps(block["input"])}
    call = {"id": block["id"], "type": "function", "function": function}
    history += [
        {"role": "assistant", "content": [{"text": None}], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": block["id"], "content": "Successfully generated response."},
        {"role": "assistant", "content": [{"text": "4"}]},
        {"role": "user", "content": "And 3+3?"},
    ]
    await proxy(history, tools=tools, tool_choice="auto")
    [timeline] = tracker.forest.timelines()
    roles = [(node.role, node.sampled) for node in tracker.forest.nodes]
    assert roles == [("user", False), ("assistant", True), ("tool", False), ("assistant", False), *roles[:2]]
    assert tracker.forest.nodes[-1].constraint is None, "what is said is honoured"
    assert timeline.n_trained == len(tokenizer.encode(written)) + 1 + len(HELLO) + 1


def add(a: int, b: int) -> ToolResponse:
    """Add two numbers."""
    return ToolResponse(content=[{"type": "text", "text": str(a + b)}])


def toolkit() -> Toolkit:
    kit = Toolkit()
    kit.register_tool_function(add)
    return kit


async def test_an_agent_with_tools_runs_on_a_template_without_them(renderer: Renderer, tokenizer: Any) -> None:
    call = 'I add. <tool_call>\n{"name":"add", "arguments": {"b": 1,"a": 2}}\n</tool_call>'
    proxy, tracker = await new_proxy(renderer, answers=[tokenizer.encode(call), tokenizer.encode(call)])
    agent = ReActAgent("a", "S", proxy, OpenAIChatFormatter(), toolkit=toolkit())
    reply = await agent(Msg("user", "2+1?", "user"))
    assert reply.get_text_content() == renderer.decode(HELLO)
    [timeline] = tracker.forest.timelines()
    text = renderer.decode(timeline.token_ids)
    assert '"name": "add"' in text.split("2+1?")[0], "the system message describes the tool"
    assert text.count("<tool_response>\n3\n</tool_response>") == 2
    assert text.count(call) == 2, "the calls stand as the model wrote them"
    assert timeline.n_trained == 2 * (len(tokenizer.encode(call)) + 1) + len(HELLO) + 1
    assert [node.role for node in tracker.forest.nodes] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]


async def test_a_malformed_call_is_text_for_the_agent_and_an_event_in_the_record(
    renderer: Renderer, tokenizer: Any
) -> None:
    broken = '<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>'
    proxy, tracker = await new_proxy(renderer, answers=[tokenizer.encode(broken)])
    reply = await ReActAgent("a", "S", proxy, OpenAIChatFormatter(), toolkit=toolkit())(Msg("user", "Hi", "user"))
    assert reply.get_text_content() == broken
    assert tracker.forest.nodes[-1].malformed_calls == [broken]
    assert tracker.forest.nodes[-1].tool_calls == []


async def test_tools_can_be_hidden(renderer: Renderer) -> None:
    hidden, tracker = await new_proxy(renderer, disable_tools=True)
    await ReActAgent("a", "S", hidden, OpenAIChatFormatter(), toolkit=toolkit())(Msg("user", "Hi", "user"))
    [timeline] = tracker.forest.timelines()
    assert "add" not in renderer.decode(timeline.token_ids)


FORMATTERS = ("OpenAI", "DashScope", "DeepSeek", "Ollama")


@pytest.mark.parametrize("formatter", [f"{name}{of}Formatter" for name in FORMATTERS for of in ("Chat", "MultiAgent")])
async def test_the_formatters_that_errors_name_work_with_tools_and_many_turns(
    renderer: Renderer, tokenizer: Any, formatter: str
) -> None:
    call = tokenizer.encode('<tool_call>\n{"name":"add", "arguments": {"b": 1,"a": 2}}\n</tool_call>')
    proxy, tracker = await new_proxy(renderer, answers=[call, HELLO, call])
    agent = ReActAgent("a", "S", proxy, getattr(agentscope.formatter, formatter)(), toolkit=toolkit())
    for turn in range(2):
        reply = await agent(Msg("user", f"turn {turn}", "user"))
        assert reply.get_text_content() == renderer.decode(HELLO)
    assert sum(node.sampled for node in tracker.forest.nodes) == 4
    if formatter.endswith("ChatFormatter"):  # the others write the whole conversation as one message of the user
        assert [node.role for node in tracker.forest.nodes] == [
            "system",
            *["user", "assistant", "tool", "assistant"] * 2,
        ]


@pytest.mark.parametrize("formatter", ["GeminiChatFormatter", "AnthropicChatFormatter"])
async def test_the_formatters_of_other_shapes_are_refused_by_name(
    renderer: Renderer, tokenizer: Any, formatter: str
) -> None:
    call = tokenizer.encode('<tool_call>\n{"name":"add", "arguments": {"b": 1,"a": 2}}\n</tool_call>')
    proxy, _ = await new_proxy(renderer, answers=[call])
    agent = ReActAgent("a", "S", proxy, getattr(agentscope.formatter, formatter)(), toolkit=toolkit())
    with pytest.raises(WorkflowError) as error:
        await agent(Msg("user", "Hi", "user"))
    assert "of AgentScope's formatters, those of OpenAI (chat)" in str(error.value.hint)


@pytest.mark.parametrize("content", ["stop", [{"type": "text", "text": "stop"}]])
async def test_gym_step_takes_text_and_blocks_from_async_code(renderer: Renderer, content: Any) -> None:
    proxy, _ = await new_proxy(renderer)
    assert proxy.gym_step({"role": "assistant", "content": "go"}) == ("echo go", 1.0, False, {"n": 1})
    assert await proxy.agym_step({"role": "assistant", "content": content}) == ("echo stop", 1.0, True, {"n": 1})


async def test_an_agents_message_that_is_none_is_refused(renderer: Renderer) -> None:
    proxy, _ = await new_proxy(renderer)
    with pytest.raises(WorkflowError, match=r"reply\.content"):
        proxy.gym_step(Msg("a", "x", "assistant"))  # type: ignore[arg-type]


async def test_the_proxy_is_what_agentscope_asks_models_to_be(renderer: Renderer) -> None:
    proxy, _ = await new_proxy(renderer)
    assert isinstance(proxy, ChatModelBase)
    assert isinstance(proxy.as_agentscope_model("critic"), ChatModelBase)


@pytest.mark.parametrize("quiet", ["true", "false"])
async def test_agents_that_were_made_before_the_run_print_nothing_unless_the_user_says_so(
    renderer: Renderer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, quiet: str
) -> None:
    monkeypatch.setenv("AGENTSCOPE_DISABLE_CONSOLE_OUTPUT", quiet)
    proxy, _ = await new_proxy(renderer)
    agent = ReActAgent("bob", "S", proxy, OpenAIChatFormatter())
    agent.set_console_output_enabled(True)  # as of an agent that was made when the variable was not set
    await agent(Msg("user", "Hi", "user"))
    assert ("bob" in capsys.readouterr().out) == (quiet == "false")


@pytest.mark.slow
def test_agentscope_is_arranged_when_an_episode_imports_it(tmp_path: Path) -> None:
    code = f"""
import asyncio, importlib.util, sys
from astune.workflow import AstuneProxy
from astune.workflow.agentscope_guest import arrange_agentscope
from astune.workflow.safe_tools import tools_of_episode
from astune.config.schema import SandboxConfig
arrange_agentscope()
assert importlib.util.find_spec("agentscope"), "as libraries ask whether it is installed"
assert "agentscope" not in sys.modules
from agentscope.model import ChatModelBase
from agentscope.tool import write_text_file
assert issubclass(AstuneProxy, ChatModelBase)
with tools_of_episode(SandboxConfig()):
    print(asyncio.run(write_text_file({str(tmp_path / "file")!r}, "x")).content)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Error: write_text_file is not available here" in done.stdout, done.stderr
    assert not (tmp_path / "file").exists()


def test_importing_astune_and_its_names_loads_neither_torch_nor_an_agent_framework() -> None:
    code = (
        "import sys, astune; from astune import *; "
        "heavy = {'torch', 'transformers', 'agentscope'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_a_missing_agentscope_is_one_line_that_says_what_to_install(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "agentscope.message", None)
    proxy, _ = await new_proxy(renderer)
    with pytest.raises(Exception, match=re.escape(install_extra("agentscope"))):
        await proxy([{"role": "user", "content": "Hi"}])
