"""AgentScope's own tools that act on this machine, as an agent's file has imported them, in episodes and outside."""

from __future__ import annotations

import asyncio
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest
from agentscope.message import ToolUseBlock
from agentscope.tool import Toolkit, execute_python_code, execute_shell_command, insert_text_file, write_text_file

from astune.config.schema import SandboxConfig
from astune.sandbox import shared_sandbox
from astune.schema import SandboxError
from astune.workflow import held_tools, safe_tools
from astune.workflow.agentscope_guest import arrange_agentscope
from astune.workflow.safe_tools import tools_of_episode

TOOLKIT = Toolkit()
for _tool in (execute_python_code, execute_shell_command, insert_text_file, write_text_file):
    TOOLKIT.register_tool_function(_tool)
OFFERED = TOOLKIT.get_json_schemas()
SIGNATURE = inspect.signature(write_text_file)


@pytest.fixture(scope="module", autouse=True)
def _arranged() -> None:
    arrange_agentscope()
    try:
        asyncio.run(shared_sandbox(SandboxConfig()))
    except SandboxError as cause:
        pytest.skip(str(cause))


async def called(tool: str, **arguments: Any) -> str:
    use = ToolUseBlock(type="tool_use", id="1", name=tool, input=arguments)
    return "".join([text(chunk) async for chunk in await TOOLKIT.call_tool_function(use)])


def text(response: Any) -> str:
    return response.content[0]["text"]


async def test_code_and_commands_reach_no_file_of_this_machine_in_an_episode_and_do_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("treasure")
    read, show = f"print(open({str(secret)!r}).read())", f"cat {secret}; exit 3"

    async def of_an_episode() -> None:
        with tools_of_episode(SandboxConfig()) as use:
            assert "FileNotFoundError" in await called("execute_python_code", code=read)
            assert "No such file" in await called("execute_shell_command", command=show)
            assert "<returncode>3</returncode>" in await called("execute_shell_command", command=show)
            assert "<stdout>4\n</stdout>" in await called("execute_shell_command", command="echo $((2 + 2)) | cat")
            assert "treasure" not in text(await execute_python_code(read))
            assert use.failure is None

    async def of_nobody() -> None:  # as a judge, whose episode's agent is done
        with tools_of_episode(SandboxConfig()):
            pass
        assert "treasure" in await called("execute_python_code", code=read)
        assert "treasure" in await called("execute_shell_command", command=show)

    await asyncio.gather(of_an_episode(), of_nobody(), of_an_episode())


@pytest.mark.slow
async def test_the_files_of_a_shell_stay_between_the_commands_of_an_episode_and_no_longer() -> None:
    async def shell(command: str, **limits: Any) -> str:
        return await called("execute_shell_command", command=command, **limits)

    async def episode(number: int) -> None:
        with tools_of_episode(SandboxConfig(output_kb=16)):
            assert "<stdout></stdout>" in await shell("ls -A")
            made = await shell(f"mkdir src && echo 'echo {number}' > src/run.sh && chmod 700 src/run.sh && ln -s src s")
            assert made == "<returncode>0</returncode><stdout></stdout><stderr></stderr>"
            assert f"<stdout>{number}\n</stdout>" in await shell("sh s/run.sh")
            assert "<returncode>7</returncode>" in await shell("echo more >> src/run.sh; exit 7")
            assert "<stdout>2 src/run.sh\n</stdout>" in await shell("wc -l src/run.sh")
            assert "TimeoutError" in await shell("rm src/run.sh; sleep 60", timeout=1.5)
            too_much = await shell("rm src/run.sh; head -c 3000000 /dev/urandom > big; echo done >&2")
            assert "<stderr>done\nthe files are more than 1024 KB when packed" in too_much
            assert "<stdout>2 src/run.sh\n</stdout>" in await shell("wc -l src/run.sh"), "the files from before"

    await asyncio.gather(episode(1), episode(2))


async def test_a_thread_that_does_not_know_its_episode_is_held_back_while_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "file"

    async def in_a_thread(tool: str, **arguments: Any) -> str:
        call = lambda: asyncio.run(called(tool, **arguments))  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(None, call)

    write = {"file_path": str(file), "content": "x"}
    with tools_of_episode(SandboxConfig()):
        assert "not available" in await in_a_thread("write_text_file", **write)
        assert "FileNotFoundError" in await in_a_thread("execute_python_code", code=f"open({__file__!r})")
    assert not file.exists()
    await in_a_thread("write_text_file", **write)
    assert file.read_text() == "x"


async def test_a_sandbox_that_fails_in_such_a_thread_is_told_to_every_running_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(_: SandboxConfig) -> None:
        raise SandboxError("broken")

    monkeypatch.setattr(safe_tools, "shared_sandbox", broken)
    with tools_of_episode(SandboxConfig()) as one, tools_of_episode(SandboxConfig()) as other:
        call = lambda: asyncio.run(execute_python_code("1"))  # noqa: E731
        with pytest.raises(SandboxError):
            await asyncio.get_running_loop().run_in_executor(None, call)
    assert isinstance(one.failure, SandboxError)
    assert isinstance(other.failure, SandboxError)


async def test_a_model_that_writes_a_file_is_refused_and_the_log_names_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tools, "_logged", set())
    file = tmp_path / "file"
    for tool, arguments in (("write_text_file", {}), ("insert_text_file", {"line_number": 1})):
        with tools_of_episode(SandboxConfig()) as use:
            answer = await called(tool, file_path=str(file), content="x", **arguments)
        assert answer == f"Error: {tool} is not available here. No file was changed."
        assert use.failure is None, "what a model writes is no failure of the run"
        assert f"--set sandbox.unconfined_tools=[{tool}]" in caplog.records[-1].message
    assert not file.exists()
    with tools_of_episode(SandboxConfig(unconfined_tools=("write_text_file",))) as use:
        await called("write_text_file", file_path=str(file), content="x")
    assert use.failure is None
    assert file.read_text() == "x"


async def test_the_run_says_once_which_tools_run_where(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tools, "_logged", set())
    with tools_of_episode(SandboxConfig(unconfined_tools=("execute_shell_command",))):
        for _ in range(2):
            await execute_python_code("print(1)")
            await execute_shell_command("true")
    assert [record.message.partition(",")[0] for record in caplog.records if record.levelno == logging.WARNING] == [
        "AgentScope's execute_python_code runs in the sandbox during episodes; "
        "sandbox.unconfined_tools lists the tools that shall not",
        "AgentScope's execute_shell_command runs WITHOUT isolation",
    ]


def test_an_agent_offers_them_as_before() -> None:
    anew = Toolkit()
    for tool in (execute_python_code, execute_shell_command, insert_text_file, write_text_file):
        anew.register_tool_function(tool)
    assert anew.get_json_schemas() == OFFERED
    assert inspect.signature(write_text_file) == SIGNATURE
    assert inspect.iscoroutinefunction(write_text_file)
