"""A model behind a server that takes token ids and gives token ids and log-probabilities, as vLLM does.

It samples; what its weights are is the server's business, until `load_weights` publishes new ones.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astune.engine.base import EngineStats, WeightsSource
from astune.engine.endpoint import Endpoint
from astune.schema import Completion, EngineError, Grammar, SamplingParams


class ServedEngine:
    """Implements `InferenceEngine` over `/v1/completions`.

    Args:
        weights: a folder from which the server takes new weights, by `in_vllm/astune_vllm_worker.py`; None where it
            takes none.

    Raises:
        EngineError: the server fails, or answers without token ids or log-probabilities.
    """

    def __init__(self, endpoint: Endpoint, *, max_model_len: int, weights: Path | None = None) -> None:
        self._endpoint = endpoint
        self._weights = weights
        self._max_model_len = max_model_len
        self._stats = EngineStats()
        self._version = 0

    @property
    def name(self) -> str:
        return self._endpoint.root

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
        version = self._version
        self._stats = replace(self._stats, running=self._stats.running + 1)
        try:
            answer = await self._endpoint.post("/v1/completions", self._request(prompt, params))
        finally:
            self._stats = replace(self._stats, running=self._stats.running - 1)
        completion = self._completion(answer, version)
        cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self._stats = replace(
            self._stats,
            prompt_tokens=self._stats.prompt_tokens + len(prompt),
            prefilled_tokens=self._stats.prefilled_tokens + len(prompt) - cached,
            sampled_tokens=self._stats.sampled_tokens + len(completion.token_ids),
        )
        return completion

    async def load_weights(self, source: WeightsSource) -> int:
        """Write the weights where the server reads them, and let it; what it has cached belongs to the old ones."""
        if self._weights is None:
            raise EngineError(
                f"{self.name} is not ours to give new weights to",
                hint="leave engine.base_url empty, and a server is started that takes them",
            )
        await asyncio.to_thread(_write, source, self._weights)
        asked = {"method": "take_weights", "kwargs": {"folder": str(self._weights)}}
        await self._endpoint.post("/collective_rpc", asked)
        await self._endpoint.post("/reset_prefix_cache", {})
        self._version = source.version
        return self._version

    def stats(self) -> EngineStats:
        """Tokens of answered calls; a call that is cancelled ends at the server, and nobody learns how far it came."""
        return self._stats

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def answers(self) -> bool:
        return await self._endpoint.answers()

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
        }
        if params.top_k:
            body["top_k"] = params.top_k
        if params.seed is not None:
            body["seed"] = params.seed
        if params.grammar is not None:
            body["structured_outputs"] = self._structured(params.grammar)
        return body

    def _structured(self, grammar: Grammar) -> dict[str, Any]:
        if grammar.kind == "json_schema":
            return {"json": json.loads(grammar.text)}
        if grammar.kind == "regex":
            return {"regex": grammar.text}
        raise EngineError(
            f"{self.name} cannot be made to keep to a {grammar.kind} grammar",
            hint="leave tool_choice free, or use engine.type: in_process",
        )

    def _completion(self, answer: Any, version: int) -> Completion:
        choice = answer["choices"][0]
        token_ids: list[int] | None = choice.get("token_ids")
        logprobs: list[float] | None = (choice.get("logprobs") or {}).get("token_logprobs")
        lacks = [name for name, value in (("token ids", token_ids), ("log-probabilities", logprobs)) if value is None]
        if token_ids is None or logprobs is None:
            raise EngineError(f"{self.name} answered without {' and '.join(lacks)}", hint="serve the model with vLLM")
        if len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
            raise EngineError(f"{self.name} answered {len(token_ids)} tokens with the log-probabilities {logprobs}")
        finish_reason = "stop" if choice.get("finish_reason") == "stop" else "length"
        return Completion(list(token_ids), [min(0.0, value) for value in logprobs], finish_reason, version)


def _write(source: WeightsSource, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in source.named_tensors()}, folder / "model.safetensors")
