"""A model behind any OpenAI-compatible chat endpoint: messages in, text out. For debugging and data, not for training.

Its ids are characters (`written.py`), and log-probabilities are NaN, since they are unknown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from astune.engine.base import WeightsSource
from astune.engine.remote.counted import RemoteEngine
from astune.engine.remote.endpoint import Endpoint, Refusal, choice_of
from astune.engine.remote.written import read, written
from astune.schema import (
    Completion,
    ContextOverflow,
    EngineError,
    Grammar,
    SamplingParams,
    number_of_call,
    tool_call_id,
)
from astune.schema.plain_json import whole

UNBOUNDED = 1 << 40
"""Context of such a model, in characters: the endpoint's own limit holds."""
_PROOF = [{"role": "user", "content": "Say yes."}]
_PROOF_TOKENS = 16
_PROOF_WITHIN_S = 120.0
_SHOWN_MODELS = 20


class TextEndpointEngine(RemoteEngine):
    """Implements `InferenceEngine` over `/v1/chat/completions`.

    The endpoint's own limits hold: what it refuses as too long is a ContextOverflow. Its counters are in characters.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._length = "max_tokens"
        """Endpoint's name for the limit of an answer; newer OpenAI models use another one."""

    async def prove(self) -> None:
        """Ask for a short answer: whether the endpoint has this model, and which parameters it accepts.

        Raises:
            EngineError: it does not answer; names its models where it has none of that name.
        """
        ask = SamplingParams(max_tokens=_PROOF_TOKENS)
        try:
            await self._endpoint.post("/chat/completions", self._request(_PROOF, [], ask), timeout_s=_PROOF_WITHIN_S)
        except Refusal as refusal:
            if "max_completion_tokens" in refusal.message and self._length == "max_tokens":
                self._length = "max_completion_tokens"
                return await self.prove()
            if refusal.status == 404:
                await self._require_model()
            raise

    async def _require_model(self) -> None:
        model, served = self._endpoint.model, await self._endpoint.models()
        if model not in served:
            raise EngineError(
                f"{self.name} has no model {model}; it has {', '.join(served[:_SHOWN_MODELS])}",
                hint="set engine.model to one of them",
            )

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        messages, tools = read(prompt_ids)
        try:
            answer = await self._ask("/chat/completions", self._request(messages, tools, params))
        except Refusal as refusal:
            if refusal.status == 400 and "context" in refusal.message:
                raise ContextOverflow(
                    refusal.message, hint="shorten what the agent puts into its messages"
                ) from refusal
            raise
        choice = choice_of(answer, self.name)
        try:
            token_ids = written(_answer_of(choice["message"]))
        except (KeyError, TypeError) as cause:
            raise EngineError(f"{self.name} did not answer with a chat completion: {str(choice)[:300]}") from cause
        self._count(prompt=len(prompt_ids), cached=0, sampled=len(token_ids))
        finish_reason = "length" if choice.get("finish_reason") == "length" else "stop"
        return Completion(token_ids, [math.nan] * len(token_ids), finish_reason, 0)

    async def load_weights(self, source: WeightsSource) -> int:
        raise EngineError(f"{self.name} takes no new weights", hint="train with engine.type: in_process")

    def _request(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], params: SamplingParams
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": _linked(messages),
            self._length: params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
        }
        if tools:
            body["tools"] = tools
        if params.grammar is not None:
            body |= self._form(params.grammar)
        return body

    def _form(self, grammar: Grammar) -> dict[str, Any]:
        if grammar.kind == "json_schema":
            schema = {"name": "answer", "schema": json.loads(grammar.text)}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        if grammar.kind == "call":
            names = json.loads(grammar.text)
            one = {"type": "function", "function": {"name": names[0]}}
            return {"tool_choice": one if len(names) == 1 else "required"}
        raise EngineError(
            f"{self.name} cannot enforce a {grammar.kind} grammar",
            hint="ask for a JSON schema, or use engine.type: in_process",
        )


def _answer_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer in an endpoint's response.

    Raises:
        KeyError, TypeError: it is none.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError(f"its content is {content!r}")
    answer: dict[str, Any] = {"role": "assistant", "content": content}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        answer["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        answer["tool_calls"] = [{"type": "function", "function": call["function"]} for call in message["tool_calls"]]
    return whole(answer)


def _linked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as an endpoint takes them: the calls of sampled answers under the ids that their results name."""
    linked: list[dict[str, Any]] = []
    for position, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and "id" not in calls[0]:
            results = takewhile(lambda following: following["role"] == "tool", messages[position + 1 :])
            ids = {number_of_call(result["tool_call_id"]): result["tool_call_id"] for result in results}
            made_up = {number: tool_call_id(position, number) for number in range(len(calls))}
            message = message | {
                "tool_calls": [{"id": (made_up | ids)[number], **call} for number, call in enumerate(calls)]
            }
        linked.append(message)
    return linked
