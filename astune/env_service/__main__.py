"""`python -m astune.env_service --env NAME --portal 127.0.0.1 --port 8080`: host an environment over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from functools import partial

import uvicorn

from astune.env_service._service import Service
from astune.env_service._wire import TOKEN_VARIABLE
from astune.env_service.built_in import BUILT_IN
from astune.env_service.handle import CALL_TIMEOUT_S
from astune.env_service.places import Places
from astune.env_service.server import new_app
from astune.processes.pool import WorkerPool
from astune.processes.secret import take_variable
from astune.processes.worker import Worker
from astune.schema import AstuneError, ConfigError, is_loopback
from astune.serving.server import listen, server_config

WORKER = "astune.env_service._worker"
"""The server's own process never runs an environment's code; a process of this module hosts each live instance."""
REQUESTS_END_S = 2
"""Seconds for unfinished responses when the server ends."""

_log = logging.getLogger("astune.env_service")


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        asyncio.run(serve(given))
    except AstuneError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def serve(given: argparse.Namespace) -> None:
    """Serve until a signal ends it. Raises AstuneError if the environment cannot be hosted, or the port is taken."""
    listening = _listen(given.portal, given.port)
    token, loopback = take_variable(TOKEN_VARIABLE), is_loopback(given.portal)
    if not loopback and token is None:
        raise ConfigError(
            f"--portal {given.portal} can be reached from other machines, and no token is set",
            hint=f"set {TOKEN_VARIABLE} to a secret for the server and for training, or listen on 127.0.0.1",
        )
    start = partial(Worker.start, WORKER, given.env, name="the environment's process")
    pool = WorkerPool(start, warm=min(given.warm, given.max_instances))
    service = Service(
        Places(pool, given.max_instances),
        env=given.env,
        idle_release_s=given.idle_release_s,
        call_timeout_s=given.call_timeout_s,
    )
    await service.open()
    host, port = listening.getsockname()[:2]
    _log.info("hosts %s on http://%s:%s, up to %s instances", given.env, host, port, given.max_instances)
    app = new_app(service, loopback=loopback, token=token)
    await Server(server_config(app, end_s=REQUESTS_END_S, log_level="info"), service).serve(sockets=[listening])


class Server(uvicorn.Server):
    """Ends the instances before it waits for running calls, which end with them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.aclose()
        await super().shutdown(sockets)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m astune.env_service", description=__doc__)
    parser.add_argument(
        "--env",
        required=True,
        help=f"environment to host, required: {', '.join(BUILT_IN)} (with a variant where it has some, as "
        "reasoning_gym:leg_counting), or a class: module->Class, path/file.py->Class",
    )
    parser.add_argument(
        "--portal",
        default="127.0.0.1",
        help="address to listen on; one that other machines reach needs a token (default %(default)s)",
    )
    parser.add_argument(
        "--port", type=_port, default=8080, help="port to listen on; 0 uses a free one (default %(default)s)"
    )
    parser.add_argument(
        "--max-instances",
        type=_count,
        default=64,
        help="maximum number of instances; at least rollout.max_env_worker (default %(default)s)",
    )
    parser.add_argument("--warm", type=_count, default=4, help="processes started in advance (default %(default)s)")
    parser.add_argument(
        "--idle-release-s",
        type=_seconds,
        default=900.0,
        help="seconds without a call after which an instance is released (default %(default)g)",
    )
    parser.add_argument(
        "--call-timeout-s",
        type=_seconds,
        default=CALL_TIMEOUT_S,
        help="seconds after which a call is ended (default %(default)g)",
    )
    return parser.parse_args(words)


def _listen(portal: str, port: int) -> socket.socket:
    try:
        return listen(portal, port)
    except OSError as cause:
        raise ConfigError(
            f"{portal}:{port} cannot be listened on: {cause.strerror}",
            hint="choose another --port, or end what listens there",
        ) from cause


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    return int(_seconds(text))


def _seconds(text: str) -> float:
    number = float(text)
    if not number >= 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
