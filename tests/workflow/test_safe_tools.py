"""Running code as an agent does: AgentScope's toolkit, a plain call, and whole episodes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from agentscope.message import ToolUseBlock
from agentscope.tool import Toolkit
from agentscope.tool import execute_python_code as agentscopes_own

from astune.config.schema import SandboxConfig
from astune.sandbox import Sandbox, shared_sandbox
from astune.schema import SandboxError
from astune.workflow import execute_python_code, run_python_code
from astune.workflow.safe_tools import tools_of_episode

CODES = [
    "print(6 * 7)",
    "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "",
    "print('é', end='')",
]


@pytest.fixture(scope="module", autouse=True)
def _a_sandbox_works_here() -> None:
    try:
        asyncio.run(shared_sandbox(SandboxConfig()))
    except SandboxError as cause:
        pytest.skip(str(cause))


@pytest.mark.parametrize("code", CODES)
async def test_the_result_is_that_of_agentscopes_own_tool(code):
    ours, theirs = await execute_python_code(code), await agentscopes_own(code)
    assert type(ours) is type(theirs)
    assert ours.content == theirs.content
    assert ours.content[0]["text"] == await run_python_code(code)


@pytest.mark.slow
async def test_a_timeout_reads_as_agentscopes_own_does():
    code = "print('begun', flush=True)\nwhile True: pass"
    for timeout in (1, 8):  # until one is long enough for both to start
        ours, theirs = await execute_python_code(code, timeout=timeout), await agentscopes_own(code, timeout=timeout)
        if all("begun" in answer.content[0]["text"] for answer in (ours, theirs)):
            break
    assert "<returncode>-1</returncode><stdout>begun\n</stdout><stderr>TimeoutError: " in ours.content[0]["text"]
    assert theirs.content[0]["text"] == ours.content[0]["text"]


@pytest.mark.parametrize("timeout", [-2, 0, -0.5, float("nan"), "soon", None, [1], 10**400])
async def test_a_timeout_that_is_none_is_an_answer_to_the_model_and_no_failure_of_the_sandbox(timeout):
    answer = await run_python_code("print(1)", timeout)
    assert answer.startswith("<returncode>-1</returncode><stdout></stdout><stderr>ValueError: the timeout has to be")


@pytest.mark.parametrize("timeout", ["10", 1e300, float("inf"), True])
async def test_a_timeout_that_can_be_read_as_seconds_is(timeout):
    assert (
        await run_python_code("print(1)", timeout) == "<returncode>0</returncode><stdout>1\n</stdout><stderr></stderr>"
    )


@pytest.mark.parametrize("code", [None, 5, ["print(1)"], {"code": "print(1)"}])
async def test_code_that_is_no_text_is_an_answer_to_the_model(code):
    assert "TypeError: the code has to be a string" in await run_python_code(code)


def test_a_toolkit_offers_it_as_it_offers_agentscopes_own():
    def offered(function: Any) -> dict[str, Any]:
        toolkit = Toolkit()
        toolkit.register_tool_function(function)
        return toolkit.get_json_schemas()[0]["function"]

    ours, theirs = offered(execute_python_code), offered(agentscopes_own)
    assert (ours["name"], ours["parameters"]) == (theirs["name"], theirs["parameters"])
    assert "sandbox" in ours["description"]
    assert list(inspect.signature(execute_python_code).parameters)[:2] == ["code", "timeout"]


async def test_a_toolkit_calls_it():
    toolkit = Toolkit()
    toolkit.register_tool_function(execute_python_code)
    use = ToolUseBlock(
        type="tool_use", id="1", name="execute_python_code", input={"code": "print(open('/etc/passwd'))"}
    )
    chunks = [chunk async for chunk in await toolkit.call_tool_function(use)]
    assert "<returncode>1</returncode>" in chunks[-1].content[0]["text"]
    assert "Error" in chunks[-1].content[0]["text"]


async def test_an_episodes_configuration_limits_its_code():
    with tools_of_episode(SandboxConfig(timeout_s=0.5)) as hurried:
        endless = await run_python_code("while True: pass")
    with tools_of_episode(SandboxConfig(timeout_s=20, memory_mb=256, output_kb=1)) as small:
        greedy, loud = await asyncio.gather(
            run_python_code("kept = bytearray(1 << 30)"), run_python_code("print('x' * 5000)")
        )
    assert endless.endswith("TimeoutError: The code execution exceeded the timeout of 0.5 seconds.</stderr>")
    assert greedy.endswith("MemoryError: The code execution exceeded the memory limit of 256 MB.</stderr>")
    assert loud.endswith("OutputError: The code printed more than 1 KB and was stopped.</stderr>")
    assert all(text.startswith("<returncode>-1</returncode>") for text in (endless, greedy, loud))
    assert hurried.failure is None
    assert small.failure is None


async def test_a_sandbox_that_fails_is_noted_though_the_toolkit_swallows_it(monkeypatch):
    async def broken(*_: Any, **__: Any) -> Any:
        raise SandboxError("no sandbox works on this machine")

    monkeypatch.setattr(Sandbox, "start", broken)
    toolkit = Toolkit()
    toolkit.register_tool_function(execute_python_code)
    call = ToolUseBlock(type="tool_use", id="1", name="execute_python_code", input={"code": "print(1)"})
    with tools_of_episode(SandboxConfig(processes=3)) as use:
        chunks = [chunk async for chunk in await toolkit.call_tool_function(call)]
    assert "no sandbox works" in chunks[-1].content[0]["text"]
    assert isinstance(use.failure, SandboxError)


def test_threads_and_event_loops_share_one_sandbox():
    async def which() -> Sandbox:
        return await shared_sandbox(SandboxConfig(processes=5))

    async def twice() -> tuple[Sandbox, Sandbox]:
        return tuple(await asyncio.gather(which(), which()))  # type: ignore[return-value]

    one, other = asyncio.run(twice())
    assert one is other is asyncio.run(which())
    assert asyncio.run(one.run("print(1)")).stdout == "1\n"
    asyncio.run(one.aclose())
