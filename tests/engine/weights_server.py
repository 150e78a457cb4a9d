"""A stand-in for vLLM with our worker extension: the same requests and answers over real HTTP, in front of a model of
two small matrices. vLLM itself takes a minute to start; `make e2e-vllm` runs the real one.

What it can be made to do wrong is what vLLM does: to answer that weights were taken where they were not, or not the
head's, and to keep cached blocks for a while.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from token_server import TokenServer

from astune.engine.base import EngineStats
from astune.engine.fingerprint import Fingerprint
from astune.engine.remote.vllm_worker.astune_weights import PROTOCOL
from astune.schema import Completion, SamplingParams

VOCABULARY = 12
TEXT = [1, 5, 3, 7, 2, 9, 4, 4, 8, 0, 6]
LIMIT = 0.05


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what servers bring about, in threads of their own."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.005)


@dataclass
class Bigrams:
    """What follows a token depends on that token alone; a `WeightsSource` of itself."""

    version: int
    layers: NDArray[np.float64]
    head: NDArray[np.float64]

    @classmethod
    def random(cls, version: int, *, size: float = 1.0) -> Bigrams:
        draw = np.random.default_rng(version)
        return cls(version, draw.normal(0, size, (VOCABULARY, 8)), draw.normal(0, size, (8, VOCABULARY)))

    def moved(self, *, layers: float = 0.0, head: float = 0.0) -> Bigrams:
        """The next version, by that much."""
        shift = Bigrams.random(self.version + 1000)
        return Bigrams(self.version + 1, self.layers + layers * shift.layers, self.head + head * shift.head)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Of every token but the first."""
        logit_TV = self.layers[list(token_ids[:-1])] @ self.head
        logprob_TV = logit_TV - np.log(np.exp(logit_TV).sum(axis=1, keepdims=True))
        return logprob_TV[np.arange(len(token_ids) - 1), list(token_ids[1:])].tolist()

    def named_tensors(self) -> Iterator[Any]:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        save_file({"layers": self.layers, "head": self.head}, folder / "model.safetensors")

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(TEXT, self.logprobs(TEXT), LIMIT)


class BigramEngine:
    """The likeliest tokens, with the log-probabilities of the weights that it has."""

    def __init__(self, weights: Bigrams) -> None:
        self.weights = weights

    def said_of(self, token_ids: Sequence[int]) -> list[float]:
        return self.weights.logprobs(token_ids)

    async def read(self, folder: Path, *, keep_head: bool) -> None:
        tensors = load_file(folder / "model.safetensors")
        self.weights = Bigrams(-1, tensors["layers"], self.weights.head if keep_head else tensors["head"])

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        ids = list(prompt_ids)
        for _ in range(params.max_tokens):
            ids.append(int(np.argmax(self.weights.layers[ids[-1]] @ self.weights.head)))
        logprobs = self.weights.logprobs(ids)[len(prompt_ids) - 1 :]
        return Completion(ids[len(prompt_ids) :], logprobs, "length", self.weights.version)

    def open_session(self, session: str) -> None: ...

    def close_session(self, session: str) -> None: ...

    async def load_weights(self, source: Any) -> int:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats()

    async def aclose(self) -> None: ...


@dataclass
class WeightsServer(TokenServer):
    """It starts with its own weights; a test sets what it does wrong. `engine` is a `BigramEngine`, or alike."""

    ignores_weights: bool = False
    """It says that it took them, and computes with what it had."""
    keeps_head: bool = False
    says_error: str = ""
    """What its workers answer in place of having read anything."""
    crashes: bool = False
    """A worker raises, and vLLM answers 500."""
    holds_blocks: int = 0
    """How many times it answers that its cache could not be emptied."""
    says_nothing_of_its_cache: bool = False
    protocol: int = PROTOCOL
    seeds_end_it: bool = False
    workers: int = 1
    can_read: asyncio.Event | None = None
    """Reading weights waits for it."""
    holds: str = ""
    order: list[str] = field(default_factory=list)
    """What was asked, in that order."""
    seen: list[list[str]] = field(default_factory=list)
    """The files that lay in the folders that were read."""

    def routes(self) -> list[Route]:
        return [
            *super().routes(),
            Route("/collective_rpc", self.ask_workers, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset, methods=["POST"]),
        ]

    async def complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.order.append("say" if "prompt_logprobs" in body else "complete")
        return await super().complete(request)

    def more(self, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" not in body:
            return {}
        ids = body["prompt"]
        said = self.engine.said_of(ids)
        return {"prompt_logprobs": [None, *({str(i): {"logprob": p}} for i, p in zip(ids[1:], said, strict=True))]}

    async def ask_workers(self, request: Request) -> Response:
        body = await request.json()
        if body["method"] == "astune_state":
            state = {"protocol": self.protocol, "holds": self.holds, "seeds_end_it": self.seeds_end_it}
            return JSONResponse({"results": [state] * self.workers})
        assert body["method"] == "astune_take_weights"
        self.order.append("take")
        if self.can_read is not None:
            await self.can_read.wait()
        folder, name = Path(body["kwargs"]["folder"]), body["kwargs"]["name"]
        self.seen.append(sorted(path.name for path in folder.parent.iterdir()))
        if self.crashes:
            message = "Call to collective_rpc method failed: Worker failed with error 'no such tensor'"
            return JSONResponse({"error": {"message": message}}, status_code=500)
        if self.says_error:
            return JSONResponse({"results": [{"error": self.says_error}] * self.workers})
        if not self.ignores_weights:
            await self.engine.read(folder, keep_head=self.keeps_head)
        self.holds = name
        return JSONResponse({"results": [{"name": name}] * self.workers})

    async def reset(self, request: Request) -> Response:
        self.order.append("forget")
        if self.says_nothing_of_its_cache:
            return Response(status_code=200)
        self.holds_blocks, emptied = max(0, self.holds_blocks - 1), self.holds_blocks == 0
        return JSONResponse({"success": emptied})
