"""What AgentScope's agents ask of a model, recorded and played: the scenes, and how a model answers in them.

`tests/workflow/traffic/VERSION.json` is what agents of that version asked, scene by scene. The model says the same to
all versions, so that a recording shows nothing but how AgentScope writes. To record the installed version:

    PYTHONPATH=tests/workflow python -m traffic_stage
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from proxy_stage import stage_proxy
from pydantic import BaseModel

from astune import AstuneProxy
from astune.renderers import Renderer, load_renderer
from astune.schema import is_tool_call_id

FOLDER = Path(__file__).parent / "traffic"
FORMATTERS = ("OpenAIChatFormatter", "DashScopeChatFormatter")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 1}}\n</tool_call>'
FINISH = (
    '<tool_call>\n{"name": "generate_response", "arguments": {"response": "It is 3.", "result": "3"}}\n</tool_call>'
)


class FinalResult(BaseModel):
    result: str


SCENES: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    "two turns": (["Hello.", "Again."], [{}, {}]),
    "a tool in each turn": ([CALL, "It is 3.", CALL, "Still 3."], [{"tools": True}, {"tools": True}]),
    "a structured reply": ([CALL, FINISH, "It is 3.", "Bye."], [{"tools": True, "structured": True}, {"tools": True}]),
}
"""What the model says, and what the user asks for in each turn."""


class Model:
    """A proxy that answers as the scene says."""

    def __init__(self, renderer: Renderer, encode: Callable[[str], list[int]], replies: Sequence[str]) -> None:
        left = [encode(reply) for reply in replies]
        self.proxy, self.tracker = stage_proxy(renderer, lambda *_: left.pop(0))


async def recorded_scene(model: Model, scene: str, formatter: str) -> list[dict[str, Any]]:
    """Play a scene with an agent of the installed AgentScope, and give what it asked of the model."""
    from agentscope import formatter as formatters
    from agentscope.agent import ReActAgent
    from agentscope.message import Msg
    from agentscope.tool import Toolkit, ToolResponse

    def add(a: int, b: int) -> ToolResponse:
        """Add two numbers."""
        return ToolResponse(content=[{"type": "text", "text": str(a + b)}])

    listener: Any = _Listener(model.proxy)
    turns = SCENES[scene][1]
    toolkit = Toolkit()
    if turns[0].get("tools"):
        toolkit.register_tool_function(add)
    agent = ReActAgent("solver", "Be brief.", listener, getattr(formatters, formatter)(), toolkit=toolkit)
    agent.set_console_output_enabled(False)
    for number, turn in enumerate(turns):
        wanted = {"structured_model": FinalResult} if turn.get("structured") else {}
        await agent(Msg("user", f"turn {number}", "user"), **wanted)
    return listener.calls


class _Listener:
    """A model that notes what it is asked and asks the proxy."""

    stream = False

    def __init__(self, proxy: AstuneProxy) -> None:
        self.model_name = proxy.model_name
        self.calls: list[dict[str, Any]] = []
        self._proxy = proxy

    async def __call__(self, messages: Any, **named: Any) -> Any:
        self.calls.append(json.loads(json.dumps({"messages": messages} | named)))
        return await self._proxy(messages, **named)


async def played_scene(proxy: AstuneProxy, calls: Sequence[dict[str, Any]]) -> None:
    """Ask the proxy what was recorded."""
    for call in calls:
        await proxy(**call)


def with_plain_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """AgentScope's own ids of calls are drawn anew in each recording; ours are the same."""
    text, names = json.dumps(calls), {}
    for call in calls:
        for message in call["messages"]:
            for tool_call in message.get("tool_calls", ()):
                if not is_tool_call_id(tool_call["id"]):
                    names.setdefault(tool_call["id"], f"agentscope-{len(names)}")
    for drawn, plain in names.items():
        text = text.replace(drawn, plain)
    return json.loads(text)


async def recording(new_model: Callable[[Sequence[str]], Model]) -> dict[str, Any]:
    """Every scene with every formatter."""
    scenes: dict[str, Any] = {}
    for scene, (replies, _) in SCENES.items():
        for formatter in FORMATTERS:
            calls = await recorded_scene(new_model(replies), scene, formatter)
            scenes[f"{scene}, {formatter}"] = with_plain_ids(calls)
    return scenes


def main() -> None:
    from transformers import AutoTokenizer

    from astune.engine.model_files import resolve_model

    folder = resolve_model("builtin:smollm2-135m")
    renderer, tokenizer = load_renderer(folder), AutoTokenizer.from_pretrained(folder)
    scenes = asyncio.run(recording(lambda replies: Model(renderer, tokenizer.encode, replies)))
    path = FOLDER / f"{version('agentscope')}.json"
    path.write_text(_one_call_a_line(scenes), encoding="utf-8")


def _one_call_a_line(scenes: dict[str, list[dict[str, Any]]]) -> str:
    def listed(calls: list[dict[str, Any]]) -> str:
        return ",\n".join(map(json.dumps, calls))

    return (
        "{\n" + ",\n".join(f"{json.dumps(scene)}: [\n{listed(calls)}\n]" for scene, calls in scenes.items()) + "\n}\n"
    )


if __name__ == "__main__":
    main()
