"""The gateway on a port of this machine, in a thread of its own. Agents of one process share one."""

from __future__ import annotations

import functools
import socket
import threading

import uvicorn
from starlette.applications import Starlette

from astune.gateway.app import new_app
from astune.gateway.episode_keys import EpisodeKeys
from astune.schema import ConfigError, WorkflowError

_START_S = 30.0


class GatewayServer:
    """Serve `keys` on a port of the loopback address, until the process ends.

    Args:
        port: 0 takes a free one.

    Raises:
        ConfigError: something else listens on the port.
        WorkflowError: it did not start.
    """

    def __init__(self, port: int = 0) -> None:
        self.keys = EpisodeKeys()
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(1024)
        except OSError as cause:
            listening.close()
            raise ConfigError(f"port {port} is not free: {cause}", hint="name another with --port") from cause
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
