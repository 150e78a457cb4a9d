"""Common bases of engines that delegate the computation: no-op sessions and counters, and one endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from astune.engine.base import EngineStats
from astune.engine.remote.endpoint import Endpoint


class CountedEngine:
    """The part of `InferenceEngine` beside `generate` and `load_weights`."""

    def __init__(self) -> None:
        self._stats = EngineStats()

    def open_session(self, session: str) -> None: ...

    def close_session(self, session: str) -> None: ...

    def stats(self) -> EngineStats:
        """Counters of answered calls; tokens of cancelled ones are unknown."""
        return self._stats

    async def aclose(self) -> None: ...

    @contextmanager
    def _running(self) -> Iterator[None]:
        """A call counts as running meanwhile."""
        self._stats = self._stats.plus(running=1)
        try:
            yield
        finally:
            self._stats = self._stats.plus(running=-1)

    def _count_cancelled(self, sampled: int) -> None:
        """Tokens that reach nobody."""
        self._stats = self._stats.plus(sampled_tokens=sampled, cancelled_tokens=sampled)

    def _count(self, *, prompt: int, cached: int, sampled: int) -> None:
        self._stats = self._stats.plus(prompt_tokens=prompt, prefilled_tokens=prompt - cached, sampled_tokens=sampled)


class RemoteEngine(CountedEngine):
    """The same for an engine behind one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        return self._endpoint.root

    async def answers(self) -> bool:
        return await self._endpoint.answers()

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """The endpoint's answer; the call counts as running meanwhile."""
        with self._running():
            return await self._endpoint.post(path, body)
