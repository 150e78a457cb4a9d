"""Common base of engines behind one endpoint."""

from __future__ import annotations

from typing import Any

from astune.engine.remote.counted import CountedEngine
from astune.engine.remote.endpoint import Endpoint


class RemoteEngine(CountedEngine):
    """The part of `InferenceEngine` beside `generate` and `load_weights`."""

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
