"""The servers of another engine as an engine of ours: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

from astune.engine.base import WeightsSource, require_context
from astune.engine.remote.counted import CountedEngine
from astune.engine.remote.served import NOTHING_ELSE, structured_outputs
from astune.schema import Completion, EngineError, SamplingParams


class BorrowedEngine(CountedEngine, ABC):
    """Implements `InferenceEngine` for one group of episodes, on servers that belong to another engine.

    Weights are the other engine's business; a version is the number of the step after which a server got them.
    """

    OWNER: ClassVar[str]
    SERVER: ClassVar[str]
    """Owner's name for an engine."""

    def __init__(self, *, max_model_len: int) -> None:
        super().__init__()
        self._max_model_len = max_model_len

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        prompt = list(prompt_ids)
        require_context(len(prompt), params, self._max_model_len)
        with self._running():
            completion = await self._sample(prompt, params, session)
        self._count(prompt=len(prompt), cached=completion.cached_tokens, sampled=len(completion.token_ids))
        return completion

    async def load_weights(self, source: WeightsSource) -> int:
        raise EngineError(
            f"{self.OWNER} gives its {self.SERVER}s their weights itself", hint="this is a defect of astune"
        )

    @abstractmethod
    async def _sample(self, prompt: list[int], params: SamplingParams, session: str) -> Completion:
        """A server's answer."""

    def _completion(
        self,
        token_ids: list[int],
        logprobs: list[float] | None,
        params: SamplingParams,
        version: int,
        cached_tokens: int = 0,
    ) -> Completion:
        """Response of a server, without the reason why it ended."""
        whole = logprobs is not None and len(logprobs) == len(token_ids) and all(map(math.isfinite, logprobs))
        if not token_ids or logprobs is None or not whole:
            raise EngineError(
                f"{self.OWNER}'s {self.SERVER} answered {len(token_ids)} tokens with the log-probabilities {logprobs}"
            )
        ended = len(token_ids) < params.max_tokens or token_ids[-1] in params.stop_token_ids
        kept = [min(0.0, float(value)) for value in logprobs]
        return Completion(token_ids, kept, "stop" if ended else "length", version, cached_tokens)


def sampling_of(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters by vLLM's names, independent of the model's generation settings; only in an environment with
    vLLM.

    Raises:
        EngineError: an answer is asked for in a form that vLLM does not keep to.
    """
    wanted: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "stop_token_ids": list(params.stop_token_ids),
        **NOTHING_ELSE,
    }
    if params.seed is not None:
        wanted["seed"] = params.seed
    if params.grammar is not None:
        sampling = import_module("vllm.sampling_params")
        wanted["structured_outputs"] = sampling.StructuredOutputsParams(**structured_outputs(params.grammar, "vLLM"))
    return wanted
