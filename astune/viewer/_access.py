"""Who may ask, and what a browser may do with the answers.

On this machine the name in the `Host` header must be this machine's: a page of the internet whose name was made to
point here (DNS rebinding) is refused. Elsewhere, and wherever a token is set, the API answers only who has it. What a
page of another site asks of the API is refused. Every answer forbids scripts, styles, frames and connections that are
not the viewer's own, and none allows other origins.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astune.schema import is_loopback
from astune.serving import has_token, host_name
from astune.viewer._answers import json_answer

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_OPEN_PATHS = ("/", "/healthz", "/static/")
"""What holds nothing secret: the page itself, which asks for everything else with its token."""


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Access:
    """Stands around the whole application.

    Args:
        loopback: whether only this machine can reach it.
        token: what the API wants to see; None where nothing is asked for.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool, token: str | None) -> None:
        self._app = app
        self._loopback = loopback
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._loopback and not is_loopback(host_name(host)):
            answer = {
                "error": f"the viewer is not called {host!r}",
                "hint": "open it as http://127.0.0.1, or start it with --host to reach it by another name",
            }
            return json_answer(answer, status=403)
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site") == "cross-site":
            answer = {"error": "the viewer answers its own page alone", "hint": "open the viewer's page first"}
            return json_answer(answer, status=403)
        if self._token is not None and not self._is_open(scope) and not _gives(self._token, scope, headers):
            answer = {"error": "the viewer wants its token", "hint": "open the address that `astune view` printed"}
            return json_answer(answer, status=401, headers={"www-authenticate": "Bearer"})
        return None

    def _is_open(self, scope: Scope) -> bool:
        """Others may ask whether the viewer is well, and not which folders there are on its machine."""
        path: str = scope["path"]
        if path == "/healthz":
            return self._loopback or not scope["query_string"]
        return path in _OPEN_PATHS or path.startswith("/static/")


def _gives(token: str, scope: Scope, headers: Headers) -> bool:
    """Compared in a time that does not tell how much of it was right."""
    if headers.get("authorization", "").lower().startswith("bearer "):
        return has_token(headers, token)
    given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
    return hmac.compare_digest(given.strip().encode(), token.encode())
