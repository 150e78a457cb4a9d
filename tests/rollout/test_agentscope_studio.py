"""`agentscope.init(studio_url=...)` beside rollouts: messages of every episode arrive, and rewards are the same.

AgentScope Studio is no package that can be installed here: a server that keeps what is sent stands for it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import agentscope
import pytest
import socketio
import uvicorn
from agentscope.agent import AgentBase, TerminalUserInput, UserAgent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from test_agentscope_episode import CalculatorAgent, run

from astune.renderers import Renderer

SAID = ["<calc>49+15</calc>", "\\boxed{64}"]


class Studio:
    """Keeps what AgentScope sends, by its path, and lets its socket for users' input connect."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        sockets = socketio.AsyncServer(async_mode="asgi")
        sockets.on("connect", lambda *_: None, namespace="/python")
        app = Starlette(routes=[Route("/{path:path}", self._keep, methods=["POST"])])
        served = socketio.ASGIApp(sockets, app)
        self.server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="error", timeout_graceful_shutdown=1))

    async def _keep(self, request: Request) -> Response:
        body = await request.body()
        is_json = "json" in request.headers.get("content-type", "")
        self.sent.append((request.url.path, json.loads(body) if is_json else None))
        return Response()

    @property
    def url(self) -> str:
        [socket] = self.server.servers[0].sockets
        return f"http://127.0.0.1:{socket.getsockname()[1]}"


def forget_studio() -> None:
    """Remove Studio's hook alone: ours, which silences agents, is put there once a process."""
    with suppress(ValueError):  # it was removed before
        AgentBase.remove_class_hook("pre_print", "as_studio_forward_message_pre_print_hook")


@pytest.fixture
def studio(monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    studio = Studio()
    thread = threading.Thread(target=studio.server.run, daemon=True)
    thread.start()
    while not studio.server.started:
        time.sleep(0.05)
    monkeypatch.setattr("agentscope.tracing.setup_tracing", lambda endpoint: None)  # spans have tests of their own
    agentscope.init(project="rollouts", studio_url=studio.url)
    try:
        yield studio
    finally:
        agentscope._config.trace_enabled = False
        forget_studio()
        UserAgent.override_class_input_method(TerminalUserInput())
        studio.server.should_exit = True
        thread.join(10)


async def test_messages_of_rollouts_are_shown_in_studio_and_change_nothing(
    renderer: Renderer, studio: Studio, record_property: Callable[[str, object], None]
) -> None:
    began = time.perf_counter()
    shown, balance, _ = await run(renderer, CalculatorAgent, SAID)
    with_studio_s = time.perf_counter() - began
    assert [episode.status for episode in shown.episodes] == ["success", "success"]
    assert balance.difference == 0
    assert studio.sent[0][0] == "/trpc/registerRun"
    messages = [body["msg"] for path, body in studio.sent if path == "/trpc/pushMessage"]
    texts = [json.dumps(each["content"]) for each in messages]
    assert sum("<calc>49+15</calc>" in text for text in texts) >= 2, "of both episodes"
    assert any("boxed" in text for text in texts)
    forget_studio()
    began = time.perf_counter()
    plain, _, _ = await run(renderer, CalculatorAgent, SAID)
    plain_s = time.perf_counter() - began
    for one, other in zip(shown.episodes, plain.episodes, strict=True):
        assert one.timelines[0].token_ids == other.timelines[0].token_ids
    record_property("ms_per_message", round(1000 * (with_studio_s - plain_s) / len(messages), 1))
