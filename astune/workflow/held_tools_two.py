"""Confinement of AgentScope 2.x's tools that act on this machine, since their arguments come from a model.

    Bash                      runs in the sandbox
    PowerShell, Write, Edit   answer the model that they are not available

They are classes, whose methods are patched, and which check at every call whether it comes from an episode. Those with
a backend other than this machine, such as a container of AgentScope's, are left as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import wraps
from importlib import import_module
from typing import Any

from astune.config.schema import HeldTool
from astune.workflow.held_tools import handling_of, refusal_of
from astune.workflow.safe_tools import current_tool_use, run_shell_command

_HELD_TOOLS: tuple[HeldTool, ...] = ("Bash", "PowerShell", "Write", "Edit")
_LONGEST_MS = 120_000
"""The default of Bash, as in AgentScope; `sandbox.timeout_s` is what holds."""


def hold_back_tools_of_two() -> None:
    """Patch the classes for every importer."""
    tools = import_module("agentscope.tool")
    for name in _HELD_TOOLS:
        tool = getattr(tools, name, None)
        if tool is not None:
            method = "call" if "call" in vars(tool) else "__call__"
            setattr(tool, method, _held(name, getattr(tool, method), tools))


def _held(name: HeldTool, own: Callable[..., Any], tools: Any) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(own):

        @wraps(own)
        async def stream(tool: Any, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
            if (answer := await _answer(name, tool, tools, *arguments, **named)) is not None:
                yield answer
                return
            async for chunk in own(tool, *arguments, **named):
                yield chunk

        return stream

    @wraps(own)
    async def call(tool: Any, *arguments: Any, **named: Any) -> Any:
        answer = await _answer(name, tool, tools, *arguments, **named)
        return await own(tool, *arguments, **named) if answer is None else answer

    return call


async def _answer(name: HeldTool, tool: Any, tools: Any, *arguments: Any, **named: Any) -> Any:
    """The result of a tool that is held back; None where the tool itself shall run."""
    use = current_tool_use()
    if use is None or not isinstance(tool._backend, tools.LocalBackend):
        return None
    match handling_of(name, use, in_sandbox=name == "Bash"):
        case "unconfined":
            return None
        case "sandbox":
            return _chunk(tools, await _sandboxed(*arguments, **named))
        case "refused":
            return _chunk(tools, refusal_of(name), failed=True)


async def _sandboxed(command: str, description: str = "", timeout: Any = _LONGEST_MS) -> str:
    """Run Bash's command, with its arguments."""
    return await run_shell_command(command, timeout / 1000 if isinstance(timeout, int | float) else timeout)


def _chunk(tools: Any, text: str, *, failed: bool = False) -> Any:
    message = import_module("agentscope.message")
    state = message.ToolResultState.ERROR if failed else message.ToolResultState.RUNNING
    return tools.ToolChunk(content=[message.TextBlock(text=text)], state=state)
