"""Agents that are servers: an episode is one POST, and the answer is its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import uvicorn
from rollout_stage import build_stage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from astune.config.schema import ProgramConfig
from astune.renderers import Renderer
from astune.schema import ConfigError, Episode
from astune.workflow.agent_server import agent_server_workflow

Answer = Callable[[dict[str, Any]], Awaitable[Response]]


@asynccontextmanager
async def agent_server(answer: Answer) -> AsyncIterator[str]:
    """The URL of an agent on a real socket."""

    async def run(request: Request) -> Response:
        return await answer(await request.json())

    started = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(
        uvicorn.Config(Starlette(routes=[Route("/run", run, methods=["POST"])]), port=0, log_level="warning")
    )
    serving = asyncio.ensure_future(server.serve())
    await started.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/run"
    finally:
        server.should_exit = True
        await serving


async def played(renderer: Renderer, answer: Answer, **rollout: Any) -> Episode:
    ids = renderer.answer_ids([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], [])
    async with agent_server(answer) as url:
        workflow = agent_server_workflow(ProgramConfig(url=url, fields=["repo"]))
        stage = build_stage(renderer, workflow, replies=lambda *_: ids, **rollout)
        return await stage.play_one(metadata={"answer": "SECRET", "repo": "a/b"})


async def asked(given: dict[str, Any]) -> str:
    client = openai.AsyncOpenAI(base_url=given["base_url"], api_key=given["api_key"])
    question: Any = [{"role": "user", "content": given["task"]["main_query"]}]
    answer = await client.chat.completions.create(model=given["model"], messages=question)
    return answer.choices[0].message.content or ""


async def test_an_agent_that_is_a_server_plays_an_episode(renderer: Renderer) -> None:
    seen: list[dict[str, Any]] = []

    async def answer(given: dict[str, Any]) -> Response:
        seen.append(given)
        result = {"final_answer": await asked(given), "metrics": {"lookups": 3}}
        return PlainTextResponse(json.dumps(result, indent=2))  # as some servers write JSON

    episode = await played(renderer, answer)
    assert episode.status == "success", episode.error
    assert episode.judge_inputs["final_answer"] == "Four"
    assert episode.metrics["lookups"] == 3
    (given,) = seen
    assert given["episode_id"] == episode.episode_id
    assert set(given["task"]) == {"task_id", "main_query", "init_messages", "repo"}


async def test_a_busy_server_is_asked_again_and_a_failing_one_is_not(renderer: Renderer) -> None:
    calls: list[int] = []

    async def busy_once(given: dict[str, Any]) -> Response:
        calls.append(1)
        if len(calls) == 1:
            return PlainTextResponse("later", status_code=503, headers={"Retry-After": "0"})
        return PlainTextResponse(await asked(given))

    episode = await played(renderer, busy_once)
    assert episode.status == "success", episode.error
    assert len(calls) == 2

    async def failing(given: dict[str, Any]) -> Response:
        calls.append(1)
        return PlainTextResponse("no such tool", status_code=500)

    episode = await played(renderer, failing)
    assert episode.status == "error"
    assert "status 500" in (episode.error or "")
    assert "no such tool" in (episode.error or "")
    assert len(calls) == 3

    async def failing_later(given: dict[str, Any]) -> Response:
        await asked(given)
        return PlainTextResponse("a traceback", status_code=500)

    episode = await played(renderer, failing_later)  # what the model answered may be the reason
    assert episode.error is None
    assert episode.reward is not None
    assert (episode.judge_inputs["exit_status"], episode.metrics["agent_failed"]) == (1, 1.0)


@pytest.mark.slow
async def test_a_server_that_never_answers_meets_the_episodes_deadline(renderer: Renderer) -> None:
    let_go = asyncio.Event()

    async def silent(given: dict[str, Any]) -> Response:
        await let_go.wait()
        return PlainTextResponse("late")

    asyncio.get_running_loop().call_later(3, let_go.set)  # the server ends no earlier than its requests
    episode = await played(renderer, silent, episode_timeout_s=0.5)
    assert episode.status == "error"
    assert "took longer than 0.5 s" in (episode.error or "")


@pytest.mark.parametrize("url", ["http://agents.example.com/run", "agents:9000", "ftp://127.0.0.1/run"])
def test_an_address_that_no_episode_can_use_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.workflow\.url"):
        agent_server_workflow(ProgramConfig(url=url))
