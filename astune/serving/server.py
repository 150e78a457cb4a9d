"""Connection handling of our HTTP servers: one protocol, with a timeout for incomplete requests.

    head    a request's line and headers must arrive within `HEAD_S` of the connection, or of the previous response
    body    and its body `BODY_S` later
    many    above `most_connections()`, the connection that has waited longest for a request is closed

A response may take any time: only waiting for a client is limited.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0
BODY_S = 120.0
_MOST = 4096
_OTHER_FILES = 256
_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """Return the listening socket; port 0 selects a free one.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once (TCP_NODELAY); without, they take 40 ms longer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def server_config(app: ASGIApp, *, end_s: int | None = None, log_level: str = "warning") -> uvicorn.Config:
    """Return the settings shared by all our servers.

    Args:
        end_s: seconds for unfinished responses when the server ends; None waits for them.
    """
    return uvicorn.Config(
        app,
        http=PromptHttp,
        ws="none",
        lifespan="off",
        log_level=log_level,
        access_log=False,  # it would hold tokens
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=end_s,
    )


def most_connections() -> int:
    """Connections at once: some of the files that this process may open are left for the rest of it."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(files // 2, min(_MOST, files - _OTHER_FILES))


class PromptHttp(H11Protocol):
    """HTTP/1.1 that closes a connection on which no whole request arrives in time."""

    def __init__(self, *positional: Any, **named: Any) -> None:  # those of uvicorn's
        super().__init__(*positional, **named)
        self._phase: object = None
        self._phase_since = 0.0
        self._phase_end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            self._make_room()
        self._note_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_phase()

    def _note_phase(self) -> None:
        """Limit each phase of a request, so that slowly arriving bytes do not prolong it."""
        phase = self.conn.their_state
        if phase is self._phase:
            return
        self._stop_timer()
        self._phase, self._phase_since = phase, time.monotonic()
        limit_s = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}.get(phase)  # type: ignore[call-overload]
        if limit_s is not None:
            self._phase_end = self.loop.call_later(limit_s, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._phase_end is not None:
            self._phase_end.cancel()
            self._phase_end = None

    def _make_room(self) -> None:
        waiting = [each for each in self.connections if isinstance(each, PromptHttp) and each._waits]
        min(waiting, key=lambda each: each._phase_since, default=self).transport.abort()

    @property
    def _waits(self) -> bool:
        return self._phase is h11.IDLE
