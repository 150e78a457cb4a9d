"""Bodies that no client writes: each gets an answer or a refusal, and never a failure of the server."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest
from examples import some
from rollout_stage import build_stage

from astune import AstuneProxy, Task, Workflow
from astune.gateway.app import json_of
from astune.gateway.chat_completions import Refused
from astune.renderers import Renderer

_TOOL: Any = {"name": "f", "parameters": {"type": "object", "properties": {}}}
_SCHEMA: Any = {"type": "object", "properties": {}}
BODIES: dict[str, Any] = {
    "/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "a",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": _TOOL}],
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "max_tokens": 5,
        "stream": True,
    },
    "/responses": {
        "model": "m",
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"role": "assistant", "content": "a"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", **_TOOL}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
        "tool_choice": "auto",
        "max_output_tokens": 5,
        "stream": False,
    },
    "/messages": {
        "model": "m",
        "max_tokens": 5,
        "system": "s",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
        ],
        "tools": [{"name": "f", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
    },
}
ATOMS: list[Any] = [
    None,
    True,
    0,
    -1,
    1e400,
    10**400,
    "",
    "x",
    "\ud800",
    "\x00",
    [],
    {},
    [None],
    [{}],
    {"a": 1},
    "user",
]
KEYS = ["role", "content", "type", "text", "name", "function", "arguments", "id", "tool_calls", "parameters", "input"]


def junk(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(ATOMS)
    if kind < 0.75:
        return [junk(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(KEYS): junk(rng, depth + 1) for _ in range(rng.randint(0, 4))}


def mutated(body: Any, rng: random.Random) -> str:
    """The body with a value somewhere in it replaced."""
    node = whole = json.loads(json.dumps(body))
    while True:
        key = rng.choice(list(node) if isinstance(node, dict) else list(range(len(node))))
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.75:
            node = node[key]
            continue
        node[key] = junk(rng)
        return json.dumps(whole)


def test_a_body_is_nested_so_deep_and_no_deeper() -> None:
    deep = [b"[" * depth + b"]" * depth for depth in (200, 300)]
    assert json_of(deep[0]) == json.loads(deep[0])
    with pytest.raises(Refused, match="nested deeper than 200"):
        json_of(deep[1])


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_no_body_makes_the_gateway_fail(seed: int, renderer: Renderer) -> None:
    rng, statuses = random.Random(seed), Counter[int]()

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            base_url, key = proxy.as_oai_baseurl_apikey()
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            async with httpx.AsyncClient(headers=headers) as client:
                for _ in range(60):
                    path = rng.choice(list(BODIES))
                    answer = await client.post(base_url + path, content=mutated(BODIES[path], rng))
                    streamed = answer.headers["content-type"].startswith("text/event-stream")
                    assert streamed or "error" in answer.json() or answer.status_code == 200
                    statuses[answer.status_code] += 1
            await proxy.achat([{"role": "user", "content": "hi"}])

    episode = asyncio.run(build_stage(renderer, Flow, max_model_len=2000).play_one())
    assert episode.status == "success", episode.error
    assert set(statuses) <= {200, 400}
    assert statuses[400] > 20
