"""A real HTTP server in front of a real engine, which answers as vLLM does; where vLLM itself is too large to be there.

`make e2e-vllm` runs training with real vLLM servers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from astune.engine.base import InferenceEngine
from astune.schema import SamplingParams

DEADLINE_S = 30.0


@dataclass
class TokenServer:
    """What a test may change while it runs: what answers leave out, and what they are."""

    engine: InferenceEngine | None
    leaves_out: set[str] = field(default_factory=set)
    refuses: list[Response] = field(default_factory=list)
    """Answers that are given before real ones."""
    said: list[dict[str, Any]] = field(default_factory=list)
    """What the chat endpoint answers, a message a call."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    encode: Callable[[str], list[int]] = lambda text: [1, 2, 3]
    sick: bool = False
    url: str = ""
    visits: int = 0
    """How often it was asked whether it is there."""

    async def health(self, request: Request) -> Response:
        self.visits += 1
        return Response(status_code=503 if self.sick else 200)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "the-model"}]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.refuses:
            return self.refuses.pop(0)
        if self.engine is None or self.sick:
            return JSONResponse({"error": {"message": "no such route"}}, status_code=404)
        prompt = body["prompt"]
        prompt_ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            stop_token_ids=tuple(body.get("stop_token_ids", ())),
            seed=body.get("seed"),
        )
        self.engine.open_session("served")
        completion = await self.engine.generate(prompt_ids, params, session="served")
        choice: dict[str, Any] = {
            "finish_reason": completion.finish_reason,
            "token_ids": completion.token_ids,
            "prompt_token_ids": prompt_ids,
            "logprobs": {"token_logprobs": completion.logprobs, "top_logprobs": None},
        }
        choice |= self.more(body)
        for name in self.leaves_out:
            choice.pop(name, None)
        usage = {"prompt_tokens": len(prompt_ids)}
        if body.get("stream"):
            return StreamingResponse(_events(choice, usage), media_type="text/event-stream")
        return JSONResponse({"choices": [choice], "usage": usage})

    def more(self, body: dict[str, Any]) -> dict[str, Any]:
        """What else a completion is answered with."""
        return {}

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.refuses:
            return self.refuses.pop(0)
        message = {"role": "assistant"} | (self.said.pop(0) if self.said else {"content": "yes"})
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})


def _events(choice: dict[str, Any], usage: dict[str, int]) -> Iterator[str]:
    """A finished completion as vLLM 0.32 streams it: some tokens an event, the end with the last, then the usage."""
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    n = len(ids or logprobs or ())
    for first in range(0, n, 2):
        part: dict[str, Any] = {"finish_reason": choice["finish_reason"] if first + 2 >= n else None}
        if ids is not None:
            part["token_ids"] = ids[first : first + 2]
        if logprobs is not None:
            part["logprobs"] = {"token_logprobs": logprobs[first : first + 2]}
        yield f"data: {json.dumps({'choices': [part], 'usage': None})}\n\n"
    yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


@contextmanager
def serving(engine: InferenceEngine | None) -> Iterator[TokenServer]:
    """A server of `engine` on a port of its own."""
    with listening(TokenServer(engine)) as server:
        yield server


S = TypeVar("S", bound=TokenServer)


@contextmanager
def listening(server: S, port: int = 0) -> Iterator[S]:
    """Until the block ends, which closes every connection; 0 takes any port that is free."""
    app = Starlette(routes=server.routes())
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=0, lifespan="off"
    )
    runner = _Runner(config)
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        assert runner.up.wait(DEADLINE_S), "the server did not start"
        server.url = f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
        yield server
    finally:
        runner.should_exit = True
        thread.join(DEADLINE_S)


class _Runner(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()
