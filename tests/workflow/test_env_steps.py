"""Steps of an environment that has tools: calls reach it, and its results come back with their ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proxy_stage import TASK, stage_proxy

from astune import AstuneProxy, Environment, EnvState, EnvStep
from astune.env_service import EmbeddedHandle
from astune.renderers import Renderer
from astune.schema import WorkflowError

HELLO = [100, 101, 102]
CALLS = [
    {"id": f"call_{n}", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": n, "b": 2})}}
    for n in (1, 2)
]


class Tools(Environment):
    """Answers each call with a result, some of which do not say which call they are of."""

    def get_init_state(self) -> EnvState:
        return EnvState([{"role": "user", "content": "Add."}], info={"tools": ["add"]})

    def step(self, action: dict[str, Any]) -> EnvStep:
        self.seen = action
        results = []
        for call in action.get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"])
            results.append({"role": "tool", "content": str(arguments["a"] + arguments["b"])})
        if len(results) == 2:
            results[1]["tool_call_id"] = action["tool_calls"][0]["id"]
        return EnvStep([*results, {"role": "user", "content": "next"}], 0.5, False, {"n": len(results)})

    def evaluate(self, sparse: bool = True) -> float:
        return 1.0


async def proxy_over_tools(renderer: Renderer) -> tuple[AstuneProxy, Any]:
    handle = EmbeddedHandle(Tools, TASK, 0)
    await handle.create()
    proxy, _ = stage_proxy(renderer, lambda *_: HELLO, handle)
    return proxy, handle._environment._instance()


BLOCKS = [
    {"type": "thinking", "thinking": "hm"},
    {"type": "text", "text": "so"},
    *({"type": "tool_use", "id": f"call_{n}", "name": "add", "input": {"a": n, "b": 2}} for n in (1, 2)),
]


@pytest.mark.parametrize(
    "action",
    [
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": CALLS},
        {"role": "assistant", "content": BLOCKS},
    ],
    ids=["openai", "agentscope"],
)
async def test_the_environment_gets_the_calls_and_its_results_have_their_ids(renderer: Renderer, action: Any) -> None:
    proxy, environment = await proxy_over_tools(renderer)
    assert await proxy.agym_step(action) == ("3\n4\nnext", 0.5, False, {"n": 2})
    assert environment.seen == {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": CALLS}
    assert proxy.env_messages == [
        {"role": "tool", "content": "3", "tool_call_id": "call_2"},
        {"role": "tool", "content": "4", "tool_call_id": "call_1"},
        {"role": "user", "content": "next"},
    ]
    await proxy.achat([*proxy.init_messages, {"role": "user", "content": "Hi"}, environment.seen, *proxy.env_messages])


async def test_a_reply_that_only_calls_is_an_action(renderer: Renderer) -> None:
    proxy, environment = await proxy_over_tools(renderer)
    observation, _, _, _ = proxy.gym_step({"role": "assistant", "content": None, "tool_calls": CALLS[:1]})
    assert observation == "3\nnext"
    assert environment.seen == {"role": "assistant", "content": "", "tool_calls": CALLS[:1]}
    assert proxy.env_messages[0] == {"role": "tool", "content": "3", "tool_call_id": "call_1"}


async def test_an_action_with_an_image_is_refused(renderer: Renderer) -> None:
    proxy, _ = await proxy_over_tools(renderer)
    with pytest.raises(WorkflowError, match="image"):
        proxy.gym_step({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x.png"}}]})


@pytest.mark.parametrize("content", [None, [], [{"type": "thinking", "thinking": "hm"}]])
async def test_a_model_that_says_nothing_has_an_empty_action(renderer: Renderer, content: Any) -> None:
    proxy, environment = await proxy_over_tools(renderer)
    proxy.gym_step({"role": "assistant", "content": content})
    assert environment.seen["content"] == ""
