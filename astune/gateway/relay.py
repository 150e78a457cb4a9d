"""Calls of workers whose episodes run in other processes: each is passed on to the gateway of its episode's process.

A call and its answer pass through as they are, streams piece by piece; the process of the episode reads the dialect,
knows repeated calls and records. A worker therefore knows one address, however many processes run episodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from astune.gateway.app import COUNT_TOKENS, DIALECTS, WRONG_KEY, key_in
from astune.gateway.episode_keys import digest_of
from astune.gateway.lease_board import Offer
from astune.gateway.server import WorkerGateway
from astune.schema import EngineError
from astune.serving.waiting_client import while_client_waits

_CONNECT_S = 10.0
_OF_A_CONNECTION = frozenset({"connection", "content-length", "date", "expect", "host", "server", "transfer-encoding"})
"""Headers that belong to one connection, not to the call."""


class Relay(WorkerGateway):
    """The gateway to which workers connect, for episodes that run in other processes."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._gateways: dict[bytes, str] = {}
        """The address of the gateway of each running episode, by the digest of its key."""
        kept = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_S), limits=kept, trust_env=False, follow_redirects=False
        )
        calls = [Route(path, self._pass_on, methods=["POST"]) for path in (*DIALECTS, COUNT_TOKENS)]
        super().__init__(host, port, token, more=[*calls, Route("/v1/models", self._pass_on, methods=["GET"])])

    async def play_for(self, gateway: str, offer: Offer) -> dict[str, Any]:
        """`play`, for an episode whose model is served by the gateway at that address."""
        with self._known(offer.key, gateway):
            return await self.play(offer)

    @contextmanager
    def _known(self, key: str, gateway: str) -> Iterator[None]:
        digest = digest_of(key)
        self._gateways[digest] = gateway
        try:
            yield
        finally:
            self._gateways.pop(digest, None)

    async def _pass_on(self, http: Request) -> Response:
        gateway = self._gateways.get(digest_of(key_in(http)))
        if gateway is None:
            raise HTTPException(401, WRONG_KEY)
        headers = httpx.Headers(_passed(http.headers.items()), encoding="latin-1")
        call = self._client.build_request(
            http.method, f"{gateway}{http.url.path}", headers=headers, content=await http.body()
        )
        try:
            answer = await while_client_waits(http, self._client.send(call, stream=True))
        except httpx.HTTPError as cause:
            raise EngineError(f"the process of the episode does not answer: {type(cause).__name__}") from cause
        return StreamingResponse(_pieces(answer), answer.status_code, dict(_passed(answer.headers.items())))


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it arrives. One that breaks off raises, so that the worker's connection breaks off, too."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_A_CONNECTION]
