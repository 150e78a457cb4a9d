"""verl's inference servers as an engine: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from astune.engine.base import EngineStats, WeightsSource
from astune.engine.served import NOTHING_ELSE
from astune.schema import Completion, EngineError, SamplingParams


class VerlEngine:
    """Implements `InferenceEngine` over verl's `LLMServerClient`, for one group of episodes.

    verl keeps a request id on one server, so an episode's id keeps its prefix cache warm. Weights are verl's business;
    a version is the number of the step after which the server got them.
    """

    def __init__(self, client: Any, *, max_model_len: int) -> None:
        self._client = client
        self._max_model_len = max_model_len
        self._stats = EngineStats()

    def open_session(self, session: str) -> None: ...

    def close_session(self, session: str) -> None: ...

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        prompt = list(prompt_ids)
        if len(prompt) + params.max_tokens > self._max_model_len:
            raise EngineError(
                f"a prompt of {len(prompt)} tokens and max_tokens {params.max_tokens} exceed "
                f"the context of {self._max_model_len} tokens",
                hint="raise rollout.max_model_len or end the episode earlier",
            )
        if params.grammar is not None:
            raise EngineError(
                "an agent asked for an answer in a form, which verl's servers are not asked for",
                hint="leave tool_choice free and structured_model out, or train with another backbone",
            )
        self._stats = replace(self._stats, running=self._stats.running + 1)
        try:
            answer = await self._client.generate(
                request_id=session, prompt_ids=prompt, sampling_params=_sampling(params)
            )
        finally:
            self._stats = replace(self._stats, running=self._stats.running - 1)
        completion = _completion(answer, params)
        cached = answer.extra_fields.get("num_cached_tokens") or 0
        self._stats = replace(
            self._stats,
            prompt_tokens=self._stats.prompt_tokens + len(prompt),
            prefilled_tokens=self._stats.prefilled_tokens + len(prompt) - cached,
            sampled_tokens=self._stats.sampled_tokens + len(completion.token_ids),
        )
        return completion

    async def load_weights(self, source: WeightsSource) -> int:
        raise EngineError("verl gives its servers their weights itself", hint="this is a defect of astune")

    def stats(self) -> EngineStats:
        return self._stats

    async def aclose(self) -> None: ...


def _sampling(params: SamplingParams) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "stop_token_ids": list(params.stop_token_ids),
        "logprobs": True,
        **NOTHING_ELSE,
    }
    return wanted if params.seed is None else wanted | {"seed": params.seed}


def _completion(answer: Any, params: SamplingParams) -> Completion:
    token_ids: list[int] = [int(token) for token in answer.token_ids]
    logprobs: list[float] | None = answer.log_probs
    if answer.stop_reason != "completed" or not token_ids:
        raise EngineError(f"verl's server broke an answer off: {answer.stop_reason}")
    if logprobs is None or len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
        raise EngineError(f"verl's server answered {len(token_ids)} tokens with the log-probabilities {logprobs}")
    version = answer.extra_fields.get("global_steps")
    if version is None:
        raise EngineError("verl's server does not say with which weights it sampled")
    ended = len(token_ids) < params.max_tokens or token_ids[-1] in params.stop_token_ids
    return Completion(
        token_ids, [min(0.0, float(value)) for value in logprobs], "stop" if ended else "length", int(version)
    )
