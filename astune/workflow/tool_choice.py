"""Tools that an agent offers, and whether an answer has to call one: OpenAI's and AgentScope's `tool_choice`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from astune.renderers import Tool
from astune.schema import WorkflowError

ToolChoice = str | dict[str, Any]
"""Value of `tool_choice`, one of:

    "auto"                 the model may call tools, or not
    "none"                 no tools are offered
    "required", "any"      one of the tools has to be called
    "add", {"type": "function", "function": {"name": "add"}}     this tool has to be called
"""


def checked(tools: Sequence[Any]) -> Sequence[Tool]:
    """Return the tools after checking them.

    Raises:
        WorkflowError: one of them does not have OpenAI's format.
    """
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name), **function}}:
                _require_schema(name, function.get("parameters"))
            case _:
                raise WorkflowError(
                    f"the model was offered {tool!r}, which is not a tool",
                    hint='a tool is {"type": "function", "function": {"name": ..., "description": ..., '
                    '"parameters": {<JSON schema>}}}',
                )
    return tools


def _require_schema(name: str, parameters: Any) -> None:
    """Refuse schemas that the model could not understand; other parts of a schema are not checked."""
    match parameters:
        case None | {"type": "object", "properties": dict()}:
            pass
        case dict() if parameters.get("type", "object") == "object" and "properties" not in parameters:
            pass
        case _:
            raise WorkflowError(
                f"the parameters of the tool {name} are {parameters!r}, which is not a JSON schema of an object",
                hint='write {"type": "object", "properties": {...}, "required": [...]}',
            )
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as cause:
        raise WorkflowError(f"the parameters of the tool {name} are not JSON: {cause}") from cause


def tools_to_call(tools: Sequence[Tool], choice: ToolChoice | None) -> Sequence[Tool]:
    """Return the tools of which the answer must call one; empty if it is unconstrained.

    Raises:
        WorkflowError: the choice names a tool that is not offered, or is not a valid `ToolChoice`.
    """
    match choice:
        case None | "auto" | "none":
            return ()
        case "required" | "any":
            chosen = list(tools)
        case str(name) | {"type": "function", "function": {"name": str(name)}}:
            chosen = [tool for tool in tools if tool["function"]["name"] == name]
        case _:
            chosen = []
    if not chosen:
        names = ", ".join(tool["function"]["name"] for tool in tools) or "none"
        raise WorkflowError(
            f"tool_choice is {choice!r}, and the tools offered are: {names}",
            hint='pass "auto", "none", "required" or the name of an offered tool',
        )
    return chosen
