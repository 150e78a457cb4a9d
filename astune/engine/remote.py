"""What engines behind one endpoint have in common: sessions without care, and counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from astune.engine.base import EngineStats
from astune.engine.endpoint import Endpoint


class RemoteEngine:
    """The part of `InferenceEngine` beside `generate` and `load_weights`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stats = EngineStats()

    @property
    def name(self) -> str:
        return self._endpoint.root

    def open_session(self, session: str) -> None: ...

    def close_session(self, session: str) -> None: ...

    def stats(self) -> EngineStats:
        """Of answered calls; a call that is cancelled ends at the server, and nobody learns how far it came."""
        return self._stats

    async def answers(self) -> bool:
        return await self._endpoint.answers()

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """The endpoint's answer; the call counts as running meanwhile."""
        self._stats = replace(self._stats, running=self._stats.running + 1)
        try:
            return await self._endpoint.post(path, body)
        finally:
            self._stats = replace(self._stats, running=self._stats.running - 1)

    def _count(self, *, prompt: int, cached: int, sampled: int) -> None:
        self._stats = replace(
            self._stats,
            prompt_tokens=self._stats.prompt_tokens + prompt,
            prefilled_tokens=self._stats.prefilled_tokens + prompt - cached,
            sampled_tokens=self._stats.sampled_tokens + sampled,
        )
