"""The gateway on a port, in a thread of its own. Agents of one process share one."""

from __future__ import annotations

import errno
import functools
import socket
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from astune.gateway.answer_store import AnswerStore
from astune.gateway.app import Workers, new_app
from astune.gateway.episode_keys import EpisodeKeys
from astune.gateway.lease_board import LeaseBoard, Offer
from astune.schema import ConfigError, WorkflowError, is_loopback
from astune.serving.server import listen, server_config

_START_S = 30.0
_END_S = 5.0


class GatewayServer:
    """Serve `keys` until the process ends, or `close`.

    Args:
        at_once: False holds requests until `serve` is called, for keys that clients knew before this server was there.
        host: the address to listen on.
        port: 0 takes a free one.
        workers: episodes for workers on other machines, where there may be any.
        store: where answers are kept for a server that is killed and comes back.
        more: routes before the gateway's own.

    Raises:
        ConfigError: something else listens on the port, or the address is not this machine's.
        WorkflowError: it did not start.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        workers: Workers | None = None,
        store: AnswerStore | None = None,
        more: Sequence[Route] = (),
        at_once: bool = True,
    ) -> None:
        self.keys = EpisodeKeys(store)
        self._thread: threading.Thread | None = None
        try:
            self._listening = listen(host, port)
        except OSError as cause:
            if cause.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} is not free: {cause.strerror}", hint="name another port") from cause
            raise ConfigError(
                f"{host}:{port} cannot be listened on: {cause.strerror}",
                hint="name an address of this machine, and a port from 1024 on",
            ) from cause
        self.root = f"http://{f'[{host}]' if ':' in host else host}:{self._listening.getsockname()[1]}"
        self.base_url = f"{self.root}/v1"
        self._server = _Server(new_app(self.keys, workers, loopback=is_loopback(host), more=more))
        if at_once:
            self.serve()

    def serve(self) -> None:
        """Answer requests from now on, those first that have come already."""
        run = functools.partial(self._server.run, [self._listening])
        self._thread = threading.Thread(target=run, name="astune-gateway", daemon=True)
        self._thread.start()
        if not self._server.ready.wait(_START_S):
            raise WorkflowError(f"the gateway did not start within {_START_S:g} s")

    async def play(self, offer: Offer) -> dict[str, Any]:
        """Let a worker play an episode, and return its result. A cancellation withdraws the episode.

        Raises:
            WorkflowError: the worker reports that it failed, or is lost (LeaseLost).
        """
        raise WorkflowError("the gateway accepts no workers", hint="this is a defect of astune")

    def close(self) -> None:
        """Stop listening; unfinished answers are cut off after some seconds."""
        self._server.should_exit = True
        if self._thread is None:
            self._listening.close()
            return
        self._thread.join(_END_S)
        self._server.force_exit = True
        self._thread.join(_END_S)


class WorkerGateway(GatewayServer):
    """A gateway whose episodes are played by workers that connect to it with `token`."""

    def __init__(self, host: str, port: int, token: str, *, more: Sequence[Route] = ()) -> None:
        self.board = LeaseBoard()
        super().__init__(port, host=host, workers=Workers(self.board, token), more=more)

    async def play(self, offer: Offer) -> dict[str, Any]:
        return await self.board.play(offer, f"astune worker --connect {self.root} -- COMMAND")

    def close(self) -> None:
        self.board.close()
        super().close()


class _Server(uvicorn.Server):
    def __init__(self, app: Starlette) -> None:
        super().__init__(server_config(app))
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@functools.cache
def gateway() -> GatewayServer:
    """Gateway of this process."""
    return GatewayServer()


@functools.cache
def worker_gateway(host: str, port: int, token: str) -> WorkerGateway:
    """Gateway of this process for workers on other machines."""
    return WorkerGateway(host, port, token)
