"""verl's inference servers as an engine."""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient

from astune.backbone.cluster.engine import BorrowedEngine, sampling_of
from astune.schema import Completion, EngineError, SamplingParams, stable_seed

_BROKEN_OFF = ("abort", "aborted")
_BEFORE_GOING_ON_S = 0.2


class VerlEngine(BorrowedEngine):
    """Engine over verl's `LLMServerClient`: a request id stays on one server, where an episode's prefix cache is warm.

    A server that gets other weights breaks answers off. Each is continued where it ended, and its version is that of
    the weights that began it. verl's own client would continue with the same seed, and so with the random numbers of
    the first tokens. A constrained one is restarted: the server would expect the form's beginning.
    """

    OWNER, SERVER = "verl", "server"

    def __init__(self, client: Any, *, max_model_len: int) -> None:
        super().__init__(max_model_len=max_model_len)
        self._client = client

    async def _sample(self, prompt: list[int], params: SamplingParams, session: str) -> Completion:
        token_ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        n_cached = 0
        while True:
            answer = await self._ask(prompt + token_ids, _rest_of(params, len(token_ids)), session)
            if answer.token_ids and answer.extra_fields.get("global_steps") is None:
                raise EngineError("verl's server does not say with which weights it sampled")
            if answer.token_ids:
                n_cached = n_cached if versions else answer.extra_fields.get("num_cached_tokens") or 0
                versions.append(int(answer.extra_fields["global_steps"]))
            token_ids += [int(token) for token in answer.token_ids]
            logprobs += answer.log_probs or []
            if answer.stop_reason not in _BROKEN_OFF or len(token_ids) >= params.max_tokens:
                break
            if params.grammar is not None:
                self._count_cancelled(len(token_ids))
                token_ids, logprobs, versions = [], [], []
            await asyncio.sleep(_BEFORE_GOING_ON_S)
        if answer.stop_reason not in ("completed", *_BROKEN_OFF) or not versions:
            raise EngineError(f"verl's server broke an answer off: {answer.stop_reason}")
        return self._completion(token_ids, logprobs, params, versions[0], n_cached)

    async def _ask(self, prompt: list[int], params: SamplingParams, session: str) -> Any:
        """An answer as a server gives it, whole or not."""
        return await LLMServerClient.generate(
            self._client,
            request_id=session,
            prompt_ids=prompt,
            sampling_params={**sampling_of(params), "logprobs": True},
        )


def _rest_of(params: SamplingParams, n_sampled: int) -> SamplingParams:
    """Request for the remaining tokens."""
    if not n_sampled:
        return params
    seed = None if params.seed is None else stable_seed(params.seed, n_sampled)
    return replace(params, max_tokens=params.max_tokens - n_sampled, seed=seed)
