"""A model behind a server that takes token ids and gives token ids and log-probabilities, as vLLM does.

It samples with the weights that the server has; a vLLM server with our worker extension can be given others.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from astune.engine.base import EngineStats, OnToken, ignore_token, require_context
from astune.engine.remote.counted import RemoteEngine
from astune.engine.remote.endpoint import Endpoint, choice_of
from astune.engine.remote.handover import Handover
from astune.engine.remote.publication import Publication
from astune.schema import ONE_LINE_JSON, Completion, EngineError, Grammar, SamplingParams

NOTHING_ELSE = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Sent with every call: what a request omits, a server takes from the model's generation_config.json."""
_REGEX_END = re.compile(r"\\.|/|\n")


def _shown(new: Sequence[int], token_ids: list[int], on_token: OnToken) -> bool:
    """Pass on and record tokens up to the one that ends the completion; returns whether one did."""
    for token in new:
        token_ids.append(token)
        if on_token(token):
            return True
    return False


def structured_outputs(grammar: Grammar, server: str) -> dict[str, Any]:
    """Request parameters by which vLLM enforces a grammar.

    A server enforces all of them by the backend of the first. So each is in llguidance's notation, and says so: the
    backend `guidance` reads it as the engine in this process does; `xgrammar`, which applies a pattern in a schema to
    the escaped text, refuses it.

    Raises:
        EngineError: it cannot be; `server` is who is meant.
    """
    match grammar.kind:
        case "json_schema":
            start = f"start: %json {json.dumps({'x-guidance': ONE_LINE_JSON, **json.loads(grammar.text)})}"
        case "regex":
            start = f"start: /{_REGEX_END.sub(_escaped, grammar.text)}/"
        case "lark":
            start = grammar.text
        case "call":
            raise EngineError(f"{server} cannot enforce a {grammar.kind} grammar", hint="this is a defect of astune")
    return {"grammar": f"%llguidance {{}}\n{start}"}


def _escaped(found: re.Match[str]) -> str:
    """Escape a match of `_REGEX_END`: these end a regular expression in llguidance's notation."""
    return {"/": r"\/", "\n": r"\n"}.get(found[0], found[0])


class ServedEngine(RemoteEngine):
    """A server, asked over `/v1/completions`; `Replicas` makes an `InferenceEngine` of some.

    Raises:
        EngineError: the server fails, or answers without token ids or log-probabilities.
    """

    def __init__(self, endpoint: Endpoint, *, max_model_len: int) -> None:
        super().__init__(endpoint)
        self._max_model_len = max_model_len
        self._handover = Handover(endpoint)
        self._gate = Gate()
        self.holds: Publication | None = None
        """The weights that it was given; None while it has its own, or is being given others."""
        self.usable = True
        """Whether it may be asked. A server that does not answer, or whose weights are unknown, may not."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.stream(prompt_ids, params, session=session)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        prompt = list(prompt_ids)
        require_context(len(prompt), params, self._max_model_len)
        async with self._gate.passing():
            if not self.usable:
                raise EngineError(f"{self.name} did not answer, or took no weights, and is left out")
            request = self._request(prompt, params)
            if on_token is ignore_token:
                answer = await self._ask("/completions", request)
            else:
                answer = await self._streamed(request, on_token)
            completion = self._completion(answer)
        self._count(prompt=len(prompt), cached=completion.cached_tokens, sampled=len(completion.token_ids))
        return completion

    async def _streamed(self, request: dict[str, Any], on_token: OnToken) -> dict[str, Any]:
        """The answer as if it had not been streamed, with its tokens shown as they come."""
        whole: dict[str, Any] = {"finish_reason": None}
        sampled_logprobs: list[float] = []
        usage = None
        body = request | {"stream": True, "stream_options": {"include_usage": True}}
        with self._running():
            async with aclosing(self._endpoint.events("/completions", body)) as events:
                async for event in events:
                    usage = event.get("usage") or usage
                    if usage and not event.get("choices"):
                        continue
                    choice = choice_of(event, self.name)
                    whole["finish_reason"] = choice.get("finish_reason") or whole["finish_reason"]
                    if (logprobs := choice.get("logprobs")) is not None:
                        whole["logprobs"] = {"token_logprobs": sampled_logprobs}
                        sampled_logprobs.extend(logprobs["token_logprobs"])
                    new = choice.get("token_ids")
                    if new is not None and _shown(new, whole.setdefault("token_ids", []), on_token):
                        whole["finish_reason"] = "stop"
                        del sampled_logprobs[len(whole["token_ids"]) :]
                        break  # which ends the sampling in the server, too
        return {"choices": [whole], "usage": usage}

    async def take(self, publication: Publication) -> None:
        """Load other weights into the server; waits until nothing runs, and calls that come meanwhile wait.

        Raises:
            EngineError, DeadlineExceeded: it does not; its weights are then unknown.
        """
        async with self._gate.closed():
            self.holds = None
            try:
                await self._handover.give(publication)
            except BaseException:
                self.usable = False
                raise
            self.holds, self.usable = publication, True

    async def lost(self) -> str | None:
        """The name of what it holds instead of what it was given, empty after a new start; None where all is well.

        Raises:
            EngineError, DeadlineExceeded: it does not say.
        """
        given = self.holds
        name = await self._handover.holds()
        return None if given is None or given is not self.holds or name == given.name else name

    def stats(self) -> EngineStats:
        return replace(self._stats, waiting=self._gate.waiting)

    def _request(self, prompt: list[int], params: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "prompt": prompt,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "stop_token_ids": list(params.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "top_k": params.top_k,
            **NOTHING_ELSE,
        }
        if params.seed is not None:
            body["seed"] = params.seed
        if params.grammar is not None:
            body["structured_outputs"] = structured_outputs(params.grammar, self.name)
        return body

    def _completion(self, answer: Any) -> Completion:
        choice = choice_of(answer, self.name)
        token_ids: list[int] | None = choice.get("token_ids")
        logprobs: list[float] | None = (choice.get("logprobs") or {}).get("token_logprobs")
        lacks = [name for name, value in (("token ids", token_ids), ("log-probabilities", logprobs)) if value is None]
        if token_ids is None or logprobs is None:
            raise EngineError(f"{self.name} answered without {' and '.join(lacks)}", hint="serve the model with vLLM")
        if len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
            raise EngineError(f"{self.name} answered {len(token_ids)} tokens with the log-probabilities {logprobs}")
        version = self.holds.version if self.holds is not None else 0
        finish_reason = choice.get("finish_reason")
        if finish_reason not in ("stop", "length"):
            raise EngineError(f"{self.name} broke an answer off: {finish_reason}")
        cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Completion(list(token_ids), [min(0.0, value) for value in logprobs], finish_reason, version, cached)


class Gate:
    """`passing` calls run at the same time; `closed` waits until all of them are out and keeps others before it."""

    def __init__(self) -> None:
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        """Calls that stand before it."""

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            while not self._open.is_set():
                await self._open.wait()
        finally:
            self.waiting -= 1
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Exclusive: a second caller waits for the first."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()
