"""The run server: receives the reports of an engine's processes over HTTP, and hands them to the run's writer.

    GET  /job         what the processes are to do
    POST /episode     an episode that ended, in the wire format of the store
    POST /<kind>      a message of `messages.py`, as JSON
    POST /play        an episode for workers on other machines, answered when one of them has played it

Every caller needs the token. A report that cannot be recorded ends the run: it is answered with status 409, and so is
every later one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from astune.backbone.cluster.messages import EpisodeOffered, EpisodePlayed, RunFailed, parse_report
from astune.backbone.cluster.run_writer import RunWriter
from astune.gateway.lease_board import Offer
from astune.gateway.relay import Relay
from astune.runs import wire
from astune.schema import AstuneError, LeaseLost, TrainerError, WorkflowError, is_loopback
from astune.serving import Guard
from astune.serving.guard import nothing
from astune.serving.server import listen, server_config
from astune.serving.waiting_client import while_client_waits


class RunServer:
    """Receives reports for `writer`, which writes the run directory and is the only one to do so.

    `failure` is set, and `failed` with it, where the run cannot continue.

    Args:
        relay: listens for workers on other machines, where there may be any; closed with this server.
    """

    def __init__(self, writer: RunWriter, relay: Relay | None = None) -> None:
        self.writer = writer
        self._relay = relay
        self.failure: AstuneError | None = None
        self.failed = asyncio.Event()
        self.last_report_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last report; 0 while one is recorded, for which the engine waits."""
        return 0.0 if self.writer.is_recording else time.monotonic() - self.last_report_at

    def fail(self, failure: AstuneError) -> None:
        """End the run; the first cause is the one that counts."""
        self.failure = self.failure or failure
        self.failed.set()

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[tuple[str, str]]:
        """The address and the token, while the server listens."""
        token = secrets.token_urlsafe(24)
        with listen(host, 0) as listening:
            port = listening.getsockname()[1]
            app = Guard(
                self._app(),
                loopback=is_loopback(host),
                token=token,
                max_body_bytes=MAX_BODY_BYTES,
                refuse=lambda status, error: _refused(error, status),
                is_open=nothing,
            )
            server = uvicorn.Server(server_config(app))
            serving = asyncio.ensure_future(server._serve([listening]))  # without its own handling of signals
            try:
                yield f"http://{host}:{port}", token
            finally:
                server.should_exit = True
                if self._relay is not None:  # no episode is waited for any more
                    await asyncio.to_thread(self._relay.close)
                await serving

    def _app(self) -> Starlette:
        async def job(_: Request) -> Response:
            return _json(self.writer.job.work_order().model_dump(mode="json"))

        async def report(request: Request) -> Response:
            self.last_report_at = time.monotonic()
            if self.failure is not None:  # what is reported after the cause is its consequence
                return _refused(str(self.failure), 409)
            try:
                return await self._record(request.path_params["kind"], await request.body())
            finally:
                self.last_report_at = time.monotonic()

        return Starlette(
            routes=[
                Route("/job", job),
                Route(f"/{EpisodeOffered.KIND}", self._play, methods=["POST"]),
                Route("/{kind}", report, methods=["POST"]),
            ],
            exception_handlers={Exception: self._defect},
        )

    async def _record(self, kind: str, body: bytes) -> Response:
        try:
            if kind == "episode":
                self.writer.write_episode(wire.unpack(body))
                return _json({})
            answer = await self.writer.write(parse_report(kind, body))
        except AstuneError as failure:
            self.fail(failure)
            return _json({}) if kind == RunFailed.KIND else _refused(str(failure), 409)
        return _json(answer.model_dump())

    async def _play(self, request: Request) -> Response:
        """Hand an episode to a worker. Whoever offered it may die meanwhile, which withdraws it."""
        if self._relay is None:
            raise ValueError("no worker can connect to this run")
        offered = EpisodeOffered.model_validate_json(await request.body())
        values = offered.model_dump()
        try:
            gateway = values.pop("gateway")
            result = await while_client_waits(request, self._relay.play_for(gateway, Offer(**values)))
        except WorkflowError as failure:
            lost = isinstance(failure, LeaseLost)
            return _played(EpisodePlayed(failure=failure.message, hint=failure.hint, lost=lost))
        except ClientDisconnect:
            return Response()
        return _played(EpisodePlayed(result=result))

    async def _defect(self, request: Request, cause: Exception) -> Response:
        self.fail(TrainerError(f"{request.url.path} was not recorded: {cause!r}", hint="this is a defect of astune"))
        return _refused(repr(cause), 500)


MAX_BODY_BYTES = 2**30
"""A step's report has 63 MB for a million trained tokens, a compressed episode of a million tokens some 10 MB."""


def _played(played: EpisodePlayed) -> Response:
    return Response(played.model_dump_json(), media_type="application/json")  # with integers of any size


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _refused(error: str, status: int) -> Response:
    return _json({"error": error}, status)
