"""The tools that an agent offers, and whether an answer has to call one: OpenAI's and AgentScope's `tool_choice`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from astune.renderers import Tool
from astune.schema import WorkflowError

ToolChoice = str | dict[str, Any]
"""An of

    "auto"                 the model may call tools, or not
    "none"                 no tools are offered
    "required", "any"      one of the tools has to be called
    "add", {"type": "function", "function": {"name": "add"}}     this tool has to be called
"""


def checked(tools: Sequence[Any]) -> Sequence[Tool]:
    """The same tools.

    Raises:
        WorkflowError: one of them is none in the shape that OpenAI gave them.
    """
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name), **function}}:
                _require_schema(name, function.get("parameters"))
            case _:
                raise WorkflowError(
                    f"the model was offered {tool!r}, which is no tool",
                    hint='a tool is {"type": "function", "function": {"name": ..., "description": ..., '
                    '"parameters": {<JSON schema>}}}',
                )
    return tools


def _require_schema(name: str, parameters: Any) -> None:
    """Refuse what the model would read as nonsense; of what schemas may say, no more is looked at."""
    match parameters:
        case None | {"type": "object", "properties": dict()}:
            pass
        case dict() if parameters.get("type", "object") == "object" and "properties" not in parameters:
            pass
        case _:
            raise WorkflowError(
                f"the parameters of the tool {name} are {parameters!r}, which is no JSON schema of an object",
                hint='write {"type": "object", "properties": {...}, "required": [...]}',
            )
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as cause:
        raise WorkflowError(f"the parameters of the tool {name} are no JSON: {cause}") from cause


def tools_to_call(tools: Sequence[Tool], choice: ToolChoice | None) -> Sequence[Tool]:
    """The tools of which the answer must call one; none where it is free.

    Raises:
        WorkflowError: the choice names a tool that is not offered, or it is none of what `ToolChoice` says.
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
