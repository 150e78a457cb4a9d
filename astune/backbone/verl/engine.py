"""verl's inference servers as an engine."""

from __future__ import annotations

from typing import Any

from astune.backbone.cluster.engine import BorrowedEngine, sampling_of
from astune.schema import Completion, EngineError, SamplingParams


class VerlEngine(BorrowedEngine):
    """Over verl's `LLMServerClient`: it keeps a request id on one server, where an episode's prefix cache is warm."""

    OWNER, SERVER = "verl", "server"

    def __init__(self, client: Any, *, max_model_len: int) -> None:
        super().__init__(max_model_len=max_model_len)
        self._client = client

    async def _sample(self, prompt: list[int], params: SamplingParams, session: str) -> tuple[Completion, int]:
        answer = await self._client.generate(
            request_id=session, prompt_ids=prompt, sampling_params={**sampling_of(params), "logprobs": True}
        )
        token_ids = [int(token) for token in answer.token_ids]
        if answer.stop_reason != "completed" or not token_ids:
            raise EngineError(f"verl's server broke an answer off: {answer.stop_reason}")
        version = answer.extra_fields.get("global_steps")
        if version is None:
            raise EngineError("verl's server does not say with which weights it sampled")
        completion = self._completion(token_ids, answer.log_probs, params, int(version))
        return completion, answer.extra_fields.get("num_cached_tokens") or 0
