"""The gateway on a port of this machine: started at the first need, one a process, in a thread of its own."""

from __future__ import annotations

import functools
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from astune.gateway.app import new_app
from astune.gateway.episode_keys import EpisodeKeys
from astune.schema import WorkflowError

_START_S = 30.0


class GatewayServer:
    """Serves `keys` on a free port of the loopback address, until the process ends.

    Raises:
        WorkflowError: it did not start.
    """

    def __init__(self) -> None:
        self.keys = EpisodeKeys()
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        self.base_url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server = _Server(new_app(self.keys))
        thread = threading.Thread(target=server.run, args=([listening],), name="astune-gateway", daemon=True)
        thread.start()
        if not server.ready.wait(_START_S):
            raise WorkflowError(f"the gateway did not start within {_START_S:g} s")


class _Server(uvicorn.Server):
    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                lifespan="off",
                server_header=False,
                proxy_headers=False,
            )
        )
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@functools.cache
def gateway() -> GatewayServer:
    """This process's gateway."""
    return GatewayServer()
