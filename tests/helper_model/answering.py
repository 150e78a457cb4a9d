"""A rule-based model behind a real OpenAI-compatible server: it answers as a test's function says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from token_server import TokenServer, listening

Rule = Callable[[str, Any], Any]
"""From the instruction and the question, read where it is JSON, to an answer; what is no text becomes JSON."""


@dataclass
class AnsweringServer(TokenServer):
    """Counts 10 tokens an answer; refuses schemas where `takes_schemas` is False."""

    rule: Rule = lambda instruction, question: "yes"
    takes_schemas: bool = True
    delay_s: float = 0.0
    engine: None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        await asyncio.sleep(self.delay_s)
        self.keys.append(request.headers.get("Authorization"))
        if self.refuses:
            return self.refuses.pop(0)
        if "response_format" in body and not self.takes_schemas:
            return JSONResponse({"error": {"message": "response_format is not supported"}}, 400)
        system, user = body["messages"][0]["content"], body["messages"][1]["content"]
        question = json.loads(user) if user.startswith("{") else user
        if isinstance(question, dict) and "seed" in body:
            question["try"] = body["seed"]
        answer = self.rule(system, question)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        message = {"role": "assistant", "content": text}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 10}})


@contextmanager
def answering(rule: Rule) -> Iterator[AnsweringServer]:
    with listening(AnsweringServer(rule=rule)) as server:
        yield server
