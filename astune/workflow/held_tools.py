"""Confinement of AgentScope 1.x's tools that act on this machine, since their arguments come from a model.

    execute_python_code, execute_shell_command      run in the sandbox
    write_text_file, insert_text_file               answer the model that they are not available

An agent's file imports them by name before a run begins, so the functions themselves are patched, and check at every
call whether it comes from an episode. Other calls are unaffected.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

from astune.config.schema import HeldTool
from astune.workflow.safe_tools import (
    ToolUse,
    current_tool_use,
    execute_python_code,
    execute_shell_command,
    tool_response,
)

if TYPE_CHECKING:
    from agentscope.tool import ToolResponse

Tool = Callable[..., Awaitable["ToolResponse"]]

_IN_THE_SANDBOX: dict[HeldTool, Tool] = {
    "execute_python_code": execute_python_code,
    "execute_shell_command": execute_shell_command,
}
_REFUSED: tuple[HeldTool, ...] = ("write_text_file", "insert_text_file")
HELD_TOOLS: tuple[HeldTool, ...] = (*_IN_THE_SANDBOX, *_REFUSED)
_KEY = "sandbox.unconfined_tools"
_log = logging.getLogger(__name__)
_logged: set[str] = set()
"""Tools for which this process has already logged a note."""


def hold_back(name: HeldTool, tool: Any) -> None:
    """Patch a tool of AgentScope for every importer; its name, signature and description stay the same."""
    signature = inspect.signature(tool)
    own = FunctionType(tool.__code__, tool.__globals__, tool.__name__, tool.__defaults__)
    own.__kwdefaults__ = tool.__kwdefaults__

    async def held(*arguments: Any, **named: Any) -> ToolResponse:
        use = current_tool_use()
        return await (own if use is None else _chosen(name, own, use))(*arguments, **named)

    tool.__code__ = _call_held.__code__
    tool.__defaults__, tool.__kwdefaults__ = None, {"astune_held": held}
    tool.__signature__ = signature


async def _call_held(*arguments: Any, astune_held: Tool, **named: Any) -> ToolResponse:
    """The code of every held tool."""
    return await astune_held(*arguments, **named)


def _chosen(name: HeldTool, own: Tool, use: ToolUse) -> Tool:
    """Return the implementation that runs in an episode."""
    match handling_of(name, use, in_sandbox=name in _IN_THE_SANDBOX):
        case "unconfined":
            return own
        case "sandbox":
            return _IN_THE_SANDBOX[name]
        case "refused":
            return partial(_refused, name)


async def _refused(name: str, *_arguments: Any, **_named: Any) -> ToolResponse:
    return tool_response(refusal_of(name))


def handling_of(name: HeldTool, use: ToolUse, *, in_sandbox: bool) -> Literal["unconfined", "sandbox", "refused"]:
    """Return how a tool runs in an episode, and say so once. A refused tool answers the model and is not an error of
    the run."""
    if name in use.config.unconfined_tools:
        _log_once(f"AgentScope's {name} runs WITHOUT isolation, since {_KEY} names it")
        return "unconfined"
    if in_sandbox:
        _log_once(f"AgentScope's {name} runs in the sandbox during episodes; {_KEY} lists the tools that shall not")
        return "sandbox"
    _log_once(
        f"AgentScope's {name} is not available to the model during episodes, for it changes files of this machine; "
        f"register a confined tool of your own, or allow it: --set {_KEY}=[{name}]"
    )
    return "refused"


def refusal_of(name: str) -> str:
    """The answer of a refused tool to the model."""
    return f"Error: {name} is not available here. No file was changed."


def _log_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)
