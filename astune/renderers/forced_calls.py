"""Grammar of forced tool calls, in the format of the model's own template.

    start: call0 | call1
    call0: <[49154]> "\\n{\\"name\\": \\"add\\", \\"arguments\\": " %json {...} "}\\n" <[49155]>

The template renders a call of each tool once. The text around the arguments starts and ends a forced answer, and the
arguments follow the tool's schema. For arguments that are not a JSON object, see `spelled_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from astune.renderers import spelled_calls
from astune.renderers.renderer import Tool
from astune.renderers.spelled_calls import Piece, cut, json_of, literal
from astune.schema import Message, WorkflowError

_PROBE = {"probe": 7}
_ARGUMENTS = json.dumps(_PROBE)
_NO_PARAMETERS = {"type": "object", "properties": {}}

Written = Callable[[Message, Sequence[Tool]], list[Piece]]
"""(an answer with a call, the tools on offer) to the text and the control tokens that the template writes."""


def lark(tools: Sequence[Tool], written: Written, model: str) -> str:
    """The grammar of a call of one of `tools`, in llguidance's notation.

    Raises:
        WorkflowError: no grammar is known for the form in which the template writes arguments.
    """
    rules = [
        rule for n, tool in enumerate(tools) for rule in _rules(f"call{n}", tool["function"], tools, written, model)
    ]
    return "\n".join([f"start: {' | '.join(f'call{n}' for n in range(len(tools)))}", *rules])


def _rules(name: str, function: dict[str, Any], tools: Sequence[Tool], written: Written, model: str) -> Iterator[str]:
    def write(arguments: dict[str, Any]) -> list[Piece]:
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        calls = [{"id": "call00001", "type": "function", "function": call}]
        return written({"role": "assistant", "content": "", "tool_calls": calls}, tools)

    parameters: dict[str, Any] = function.get("parameters") or _NO_PARAMETERS
    parts = cut(write(_PROBE), [_ARGUMENTS])
    if parts.count(_ARGUMENTS) == 1:
        arguments = json_of(parameters)
        yield f"{name}: {' '.join(arguments if part == _ARGUMENTS else literal([part]) for part in parts)}"
        return
    marks = spelled_calls.find_marks(write)
    if marks is None:
        raise WorkflowError(
            f"a call of {function['name']} cannot be forced: no grammar is known for how {model} writes arguments",
            hint='leave tool_choice at "auto", and ask for the call in the prompt',
        )
    yield from spelled_calls.rules(name, marks, parameters)
