"""Guard around an HTTP application: checks host name, token, and body size. Responses pass through unbuffered."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astune.schema.loopback import is_loopback

Refuse = Callable[[int, str], ASGIApp]
"""Makes the answer to a refused request, in the server's own shape, from a status and a text."""


def _is_health(scope: Scope) -> bool:
    return scope["path"] == "/healthz"


def nothing(_: Scope) -> bool:
    """Return that no request is an exception."""
    return False


@dataclass(eq=False, repr=False)
class Guard:
    """Pure ASGI middleware that refuses disallowed requests to our servers.

    Args:
        loopback: whether only this machine reaches the server. The `Host` header must then name this machine, which
            keeps out web pages whose name was pointed here (DNS rebinding).
        token: token that callers must send as `Authorization: Bearer`; None if none is required.
        max_body_bytes: larger bodies get status 413 and are not read to their end.
        refuse: creates the response to a refused request.
        is_open: whether a request needs no token.
        is_page: whether other sites may link to a request, since its response holds nothing secret.
        reads_query: whether the token may also be sent as `?token=`, by a browser that opens a link.
    """

    app: ASGIApp
    _: KW_ONLY
    loopback: bool
    token: str | None
    max_body_bytes: int
    refuse: Refuse
    is_open: Callable[[Scope], bool] = _is_health
    is_page: Callable[[Scope], bool] = nothing
    reads_query: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        try:
            await (refusal or self.app)(scope, self._limited(receive), send)
        except ClientDisconnect:
            return  # no client waits for the response

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self.loopback and not is_loopback(host_name(headers.get("host", ""))):
            return self.refuse(403, "the Host header does not name this machine; use http://127.0.0.1")
        if headers.get("sec-fetch-site") == "cross-site" and not self.is_page(scope):
            return self.refuse(403, "pages of other sites are not answered")
        if self.token is not None and not self.is_open(scope) and not self._gives(self.token, scope, headers):
            return self.refuse(401, "the token is missing or wrong; send it as 'Authorization: Bearer TOKEN'")
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > self.max_body_bytes):
            return self.refuse(413, self._too_large)
        return None

    def _gives(self, token: str, scope: Scope, headers: Headers) -> bool:
        if has_token(headers, token):
            return True
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return self.reads_query and _same(given, token)

    def _limited(self, receive: Receive) -> Receive:
        """The same messages, until their bodies together exceed the limit."""
        n_read = 0

        async def limited() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.max_body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return limited

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.max_body_bytes} bytes"


def has_token(headers: Headers, token: str) -> bool:
    """Return whether the request carries `token`."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and _same(given, token)


def _same(given: str, token: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())


def host_name(host: str) -> str:
    """A `Host` header's name without its port: `[::1]:8181` -> `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
