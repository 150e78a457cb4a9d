"""Endpoints that give text only: whatever their models write, the agent gets an answer in its dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from rollout_stage import build_stage, flow
from starlette.responses import Response
from token_server import serving

from astune import AstuneProxy
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.text_endpoint import TextEndpointEngine
from astune.renderers.text_renderer import TextRenderer


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"a": NaN}', None),
        ('{"a": 1e999}', None),
        ('{"a": 1, "a": 2}', None),
        ('{"a": "\\ud83d"}', '{"a": "\ufffd"}'),
        ({"a": 5}, '{"a": 5}'),  # as some servers of open models answer
        ("", "{}"),
        (None, "{}"),
    ],
)
@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
async def test_what_an_endpoints_model_wrote_into_a_call_fails_no_agent(given: Any, read: str | None, path: str):
    answers: list[str] = []

    async def agent(proxy: AstuneProxy) -> None:
        base_url, key = proxy.as_oai_baseurl_apikey()
        ask = [{"role": "user", "content": "Go."}]
        asked = {"model": "m", "input": ask} if path == "/responses" else {"model": "m", "messages": ask}
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
            for stream in (False, True):
                limit = {"max_tokens": 90} if path == "/messages" else {}
                answer = await client.post(base_url + path, json=asked | limit | {"stream": stream})
                assert answer.status_code == 200, answer.text
                answers.append(answer.text)

    with serving(None) as server:
        call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": given}}
        message = {"content": "Half: \ud83d", "tool_calls": [call]}
        said = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
        server.refuses = [Response(said, media_type="application/json") for _ in range(2)]
        engine = TextEndpointEngine(Endpoint(server.url, model="m"))
        episode = await build_stage(TextRenderer(), flow(agent), engine=engine).play_one()
        await engine.aclose()
    assert episode.status == "success", episode.error
    for node in (node for node in episode.forest.nodes if node.sampled):
        assert [call["function"]["arguments"] for call in node.tool_calls] == ([] if read is None else [read])
        assert node.content.startswith("Half: \ufffd")
        assert bool(node.malformed_calls) == (read is None)
    assert len(answers) == 2
