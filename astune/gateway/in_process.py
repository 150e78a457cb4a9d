"""The gateway without a socket: clients of OpenAI's and Anthropic's SDKs in this process, over the same handlers.

httpx's own `ASGITransport` collects a whole answer before it returns; this one passes on what the application sends as
it is sent, and cancels the application when the answer is closed. The clients are httpx's or those of its successor
httpx2, whichever the SDK uses: the two differ only in name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Scope

from astune.gateway.app import new_app
from astune.gateway.episode_keys import EpisodeKeys

Client = TypeVar("Client")


class InProcessGateway:
    """Open keys, and clients that ask with them on their own event loop."""

    base_url = "http://127.0.0.1/v1"
    """Base URL of the requests; nothing listens there."""

    def __init__(self) -> None:
        self.keys = EpisodeKeys()
        self._app = new_app(self.keys)

    def client(self, kind: type[Client]) -> Client:
        """Return an asynchronous client of `kind`, such as `openai.DefaultAsyncHttpxClient`."""
        return app_client(self._app, kind)


@functools.cache
def in_process_gateway() -> InProcessGateway:
    """Gateway of this process for its own clients."""
    return InProcessGateway()


def app_client(app: ASGIApp, kind: type[Client]) -> Client:
    """Return a client of `kind`, which is httpx's or httpx2's, whose requests `app` answers."""
    http = import_module(next(base.__module__ for base in kind.__mro__ if base.__module__ in ("httpx", "httpx2")))
    transport = type("AppTransport", (AppTransport, http.AsyncBaseTransport), {})
    new: Any = kind
    return new(transport=transport(app, http))


class AppTransport:
    """A transport of the module `http`: each request is a call of the application, in a task of its own."""

    def __init__(self, app: ASGIApp, http: Any) -> None:
        self._app = app
        self._http = http
        self._exchange = type("AppExchange", (AppExchange, http.AsyncByteStream), {})

    async def handle_async_request(self, request: Any) -> Any:
        exchange = self._exchange(self._app, self._http, request, await request.aread())
        try:
            head = await exchange.next()
        except BaseException:
            await exchange.aclose()
            raise
        return self._http.Response(head["status"], headers=head["headers"], stream=exchange)


class AppExchange:
    """A request and the body of its answer: the parts that the application sends, until it is closed."""

    def __init__(self, app: ASGIApp, http: Any, request: Any, body: bytes) -> None:
        self._http = http
        self._timeout_s: float | None = request.extensions.get("timeout", {}).get("read")
        self._unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._sent = asyncio.Queue[Message | None]()
        self._task = asyncio.ensure_future(self._run(app, _scope_of(request)))

    async def next(self) -> Message:
        """The next message of the application, waited for up to the client's read timeout.

        Raises:
            ReadTimeout, RemoteProtocolError of the module: none came; the application ended without one.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await self._sent.get()
        except TimeoutError as cause:
            raise self._http.ReadTimeout(f"nothing was sent for {self._timeout_s:g} s") from cause
        if message is None:
            raise self._http.RemoteProtocolError("the application ended before its answer did")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next()
            yield message.get("body", b"")
            more = message.get("more_body", False)

    async def aclose(self) -> None:
        """End the application's call, as when a connection is closed, and wait for its end."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            with contextlib.suppress(Exception):  # the application has logged it, as a server does
                await app(scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        if self._unread:
            return self._unread.pop()
        return await asyncio.get_running_loop().create_future()  # who hangs up cancels the application

    async def _send(self, message: Message) -> None:
        self._sent.put_nowait(message)


def _scope_of(request: Any) -> Scope:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (request.url.host, request.url.port),
    }
