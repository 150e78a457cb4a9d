"""Trinity's rollout models as an engine: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from astune.engine.base import EngineStats, WeightsSource
from astune.engine.served import NOTHING_ELSE
from astune.schema import Completion, EngineError, SamplingParams


class TrinityEngine:
    """Implements `InferenceEngine` over Trinity's `ModelWrapper`, for one group of episodes.

    Prompts are token ids, which reach the model's Ray actor; no text is read again. Weights are Trinity's business: a
    version is the number of the step after which the model got them, the older one where that happened meanwhile.
    """

    def __init__(self, model: Any, *, max_model_len: int) -> None:
        self._model = model
        self._max_model_len = max_model_len
        self._stats = EngineStats()
        self._tokenizer_loaded = asyncio.Lock()
        self._ready = False

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
                "an agent asked for an answer in a form, which Trinity's models are not asked for",
                hint="leave tool_choice free and structured_model out, or train with another backbone",
            )
        await self._load_tokenizer()
        self._stats = replace(self._stats, running=self._stats.running + 1)
        try:
            version = await self._model.model_version_async
            [answer] = await self._model.generate_async([{"prompt_token_ids": prompt}], **_sampling(params))
        finally:
            self._stats = replace(self._stats, running=self._stats.running - 1)
        completion = _completion(answer, prompt, params, int(version))
        self._stats = replace(
            self._stats,
            prompt_tokens=self._stats.prompt_tokens + len(prompt),
            prefilled_tokens=self._stats.prefilled_tokens + len(prompt),
            sampled_tokens=self._stats.sampled_tokens + len(completion.token_ids),
        )
        return completion

    async def load_weights(self, source: WeightsSource) -> int:
        raise EngineError("Trinity gives its models their weights itself", hint="this is a defect of astune")

    def stats(self) -> EngineStats:
        return self._stats

    async def aclose(self) -> None: ...

    async def _load_tokenizer(self) -> None:
        """Trinity's model writes its answers as text, too, and loads what it needs for that with a first text."""
        async with self._tokenizer_loaded:
            if not self._ready:
                await self._model.get_message_token_len([{"role": "user", "content": ""}])
                self._ready = True


def _sampling(params: SamplingParams) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "n": 1,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "stop_token_ids": list(params.stop_token_ids),
        "skip_special_tokens": False,
        "logprobs": 0,
        **NOTHING_ELSE,
    }
    return wanted if params.seed is None else wanted | {"seed": params.seed}


def _completion(answer: Any, prompt: list[int], params: SamplingParams, version: int) -> Completion:
    n_read = int(answer.prompt_length)
    token_ids, logprobs = answer.tokens[n_read:].tolist(), answer.logprobs.tolist()
    if answer.tokens[:n_read].tolist() != prompt:
        raise EngineError(
            f"Trinity's model read {n_read} tokens and was sent {len(prompt)}", hint="this is a defect of astune"
        )
    if not token_ids or len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
        raise EngineError(f"Trinity's model answered {len(token_ids)} tokens with the log-probabilities {logprobs}")
    ended = len(token_ids) < params.max_tokens or token_ids[-1] in params.stop_token_ids
    return Completion(token_ids, [min(0.0, value) for value in logprobs], "stop" if ended else "length", version)
