"""Serving the viewer: the address, its token, and the server itself until it is ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from astune.viewer._access import is_loopback, new_token
from astune.viewer._app import new_app
from astune.viewer._events import Pulse
from astune.viewer._folder import Folder
from astune.viewer._library import Library

DEFAULT_PORT = 8181
LOOPBACK = "127.0.0.1"
_ANSWERS_END_S = 2
"""Seconds that answers have to leave when the server ends."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the viewer listens. `token` is what its API wants to see, None where only this machine can ask."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token is not None else "")


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; port 0 takes a free one.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small answers at once (TCP_NODELAY).
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def serve(
    path: Path, listening: socket.socket, host: str, token: str | None, on_ready: Callable[[Address], object]
) -> None:
    """Until a signal ends it.

    Args:
        path: the folder to show, as `Folder` takes it.
        host: the name under which it listens.
        token: what the API shall ask for; where others can reach it, one is made if there is none.
        on_ready: is told the address once requests are answered.
    """
    loopback = is_loopback(host)
    if not loopback and token is None:
        token = new_token()
    pulse = Pulse()
    app = new_app(Library(Folder(path)), pulse, loopback=loopback, token=token)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_ANSWERS_END_S,
        lifespan="off",
        server_header=False,
    )
    address = Address(host, listening.getsockname()[1], token)
    asyncio.run(_Server(config, pulse, lambda: on_ready(address)).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Says when it answers, and ends its streams before it waits for answers that are on their way."""

    def __init__(self, config: uvicorn.Config, pulse: Pulse, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._pulse = pulse
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pulse.close()
        await super().shutdown(sockets)
