"""AgentScope 2.x's own tools that act on this machine: `make e2e-agentscope` runs these with the real package."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from astune.config.schema import SandboxConfig
from astune.sandbox import shared_sandbox
from astune.schema import SandboxError
from astune.workflow.agentscope_guest import arrange_agentscope
from astune.workflow.safe_tools import tools_of_episode


def _is_there() -> bool:
    try:
        return version("agentscope").startswith("2.")
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not _is_there(), reason="AgentScope 2.x is in .venv-agentscope-2.0.11 alone")


def tool(name: str, **more: Any) -> Any:
    arrange_agentscope()
    return getattr(import_module("agentscope.tool"), name)(**more)


async def called(of: Any, **arguments: Any) -> str:
    result = await of(**arguments)
    chunks = [chunk async for chunk in result] if hasattr(result, "__aiter__") else [result]
    return "".join(block.text for chunk in chunks for block in chunk.content)


async def test_files_are_written_outside_of_episodes_and_where_the_configuration_allows_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write, edit = tool("Write"), tool("Edit")
    with tools_of_episode(SandboxConfig()) as use:
        assert "not available" in await called(write, file_path=str(file), content="x")
        assert "not available" in await called(edit, file_path=str(file), old_string="x", new_string="y")
        assert "not available" in await called(tool("PowerShell"), command="1")
        assert use.failure is None
    assert not file.exists()
    with tools_of_episode(SandboxConfig(unconfined_tools=("Write",))):
        await called(write, file_path=str(file), content="x")
    assert file.read_text() == "x"
    await called(edit, file_path=str(file), old_string="x", new_string="y")
    assert file.read_text() == "y"


async def test_commands_run_in_the_sandbox_in_an_episode(tmp_path: Path) -> None:
    try:
        await shared_sandbox(SandboxConfig())
    except SandboxError as cause:
        pytest.skip(str(cause))
    file = tmp_path / "secret"
    file.write_text("treasure")
    with tools_of_episode(SandboxConfig()):
        assert "No such file" in await called(tool("Bash"), command=f"cat {file}")
        assert "<stdout>4\n</stdout>" in await called(tool("Bash"), command="echo $((2 + 2))", timeout=60000)
    assert "treasure" in await called(tool("Bash"), command=f"cat {file}")


async def test_tools_with_another_backend_are_left_as_they_are(tmp_path: Path) -> None:
    class Elsewhere(import_module("agentscope.tool").BackendBase):
        os_name = "posix"

        async def exec_shell(self, command: list[str], **_: Any) -> Any:
            return import_module("agentscope.tool").ExecResult(exit_code=0, stdout=b"elsewhere", stderr=b"")

        async def read_file(self, path: str) -> bytes:
            return b""

        async def write_file(self, path: str, data: bytes) -> None:
            return

    with tools_of_episode(SandboxConfig()):
        assert "elsewhere" in await called(tool("Bash", backend=Elsewhere()), command="ls")
