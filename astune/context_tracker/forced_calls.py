"""A grammar whose texts are tool calls, in the form in which a model's own template writes them.

    start: call0 | call1
    call0: <[49154]> "\\n{\\"name\\": \\"add\\", \\"arguments\\": " %json {...} "}\\n" <[49155]>

The template writes a call of each tool once. What it puts around the arguments is what a forced answer begins and ends
with, and the arguments between follow the tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from astune.context_tracker.renderer import Tool
from astune.schema import ONE_LINE_JSON, Message, WorkflowError, closed_schema

_ARGUMENTS = json.dumps({"probe": 7})
_NO_PARAMETERS = {"type": "object", "properties": {}}

Written = Callable[[Message, Sequence[Tool]], list[str | int]]
"""(an answer with a call, the tools on offer) to the text and the control tokens that the template writes."""


def lark(tools: Sequence[Tool], written: Written, model: str) -> str:
    """The grammar of a call of one of `tools`, in llguidance's notation.

    Raises:
        WorkflowError: the template does not write arguments as JSON.
    """
    rules = [f"call{n}: {_rule(tool['function'], written, tools, model)}" for n, tool in enumerate(tools)]
    return "\n".join([f"start: {' | '.join(f'call{n}' for n in range(len(tools)))}", *rules])


def _rule(function: dict[str, Any], written: Written, tools: Sequence[Tool], model: str) -> str:
    call = {
        "id": "call00001",
        "type": "function",
        "function": {"name": function["name"], "arguments": _ARGUMENTS},
    }
    pieces = written({"role": "assistant", "content": "", "tool_calls": [call]}, tools)
    if sum(isinstance(piece, str) and piece.count(_ARGUMENTS) for piece in pieces) != 1:
        raise WorkflowError(
            f"a call of {function['name']} cannot be forced: {model} does not write the arguments of calls as JSON",
            hint='leave tool_choice at "auto", and ask for the call in the prompt',
        )
    schema = closed_schema(function.get("parameters") or _NO_PARAMETERS)
    arguments = f"%json {json.dumps({'x-guidance': ONE_LINE_JSON, **schema}, ensure_ascii=False)}"
    return " ".join(arguments if part == _ARGUMENTS else _terminal(part) for piece in pieces for part in _parts(piece))


def _parts(piece: str | int) -> list[str | int]:
    if isinstance(piece, int) or _ARGUMENTS not in piece:
        return [piece]
    before, _, after = piece.partition(_ARGUMENTS)
    return [part for part in (before, _ARGUMENTS, after) if part]


def _terminal(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)
