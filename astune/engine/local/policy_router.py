"""The engine of several policies: one in-process engine for each base, asked by policy.

It decides which weights answer, and nothing else. Requests of one base are computed in one batch; those of two bases
take turns, since both would use every core. `engine.kv_cache_gb` is shared out in equal parts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from astune.config.bases import Base
from astune.config.league import policy_in
from astune.config.schema import EngineConfig, ModelConfig
from astune.engine.adapters import Adapter, AdapterSource
from astune.engine.base import EngineStats, OnToken, WeightsSource, ignore_token
from astune.engine.local.in_process import InProcessEngine
from astune.schema import Completion, EngineError, SamplingParams


class PolicyRouter:
    """Implements `PolicyEngine` in this process.

    Args:
        bases: the models, each with its engine; that of `model.path` answers for the policy "", too.
    """

    def __init__(self, bases: Sequence[tuple[Base, InProcessEngine]]) -> None:
        self._engines = [engine for _, engine in bases]
        self._of = {
            name: engine
            for base, engine in bases
            for name in ([*base.policies, ""] if base.key == "model.path" else base.policies)
        }
        self._adapters = {name for base, _ in bases for name in base.adapters}

    @classmethod
    def load(
        cls,
        bases: Sequence[tuple[Base, Path]],
        *,
        model: ModelConfig,
        engine: EngineConfig,
        max_model_len: int,
        deterministic: bool = False,
    ) -> PolicyRouter:
        """Load each base from its folder, as `InProcessEngine.load` does."""
        part = engine.model_copy(update={"kv_cache_gb": engine.kv_cache_gb / len(bases)})
        turn = threading.Lock()
        loaded: list[tuple[Base, InProcessEngine]] = []
        try:
            for base, folder in bases:
                one = InProcessEngine.load(
                    folder,
                    model=model,
                    engine=part,
                    max_model_len=max_model_len,
                    deterministic=deterministic,
                    adapters=base.adapters,
                    turn=turn,
                )
                loaded.append((base, one))
        except BaseException:
            for _, one in loaded:
                one.stop()
            raise
        return cls(loaded)

    def open_session(self, session: str) -> None:
        for engine in self._engines:
            engine.open_session(session)

    def close_session(self, session: str) -> None:
        for engine in self._engines:
            engine.close_session(session)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.stream(prompt_ids, params, session=session)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        policy = policy_in(params.policy)
        inner = replace(params, policy=params.policy if policy in self._adapters else "")
        return await self._engine(policy).stream(prompt_ids, inner, session=session, on_token=on_token)

    async def load_weights(self, source: WeightsSource) -> int:
        """Raise EngineError: the weights of several policies come one by one."""
        raise EngineError("the engine has several policies", hint="use load_policy, which says whose weights they are")

    async def load_policy(self, policy: str, source: WeightsSource) -> int:
        return await self._engine(policy).load_weights(source)

    async def drop_policy(self, policy: str) -> None:
        await self._engine(policy).drop_weights()

    async def load_adapters(self, source: AdapterSource) -> int:
        for engine in self._engines:
            own = {name: each for name, each in source.adapters().items() if self._engine(policy_in(name)) is engine}
            if own:
                await engine.load_adapters(_Part(source.version, own))
        return source.version

    def stats(self) -> EngineStats:
        return EngineStats.total(engine.stats() for engine in self._engines)

    async def aclose(self) -> None:
        await asyncio.gather(*(engine.aclose() for engine in self._engines))

    def _engine(self, policy: str) -> InProcessEngine:
        if policy not in self._of:
            raise EngineError(f"the engine has no policy {policy!r}", hint="name those of `models`")
        return self._of[policy]


class _Part(NamedTuple):
    """The adapters of a source that are on one base."""

    version: int
    own: Mapping[str, Adapter]

    def adapters(self) -> Mapping[str, Adapter]:
        return self.own
