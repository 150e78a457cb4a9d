"""Access control: who may send requests, and what a browser may do with the responses. `Guard` refuses what no astune
server accepts. Every answer forbids scripts, styles, frames and connections that are not the viewer's own, and none
allows other origins.
"""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astune.serving import Guard
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
_HINTS = {
    401: "open the address that `astune view` printed",
    403: "open the viewer's own page at http://127.0.0.1, or start it with --host to reach it by another name",
}
_MAX_BODY_BYTES = 1 << 16
"""No question has a body."""


def new_token() -> str:
    return secrets.token_urlsafe(24)


def guarded(app: ASGIApp, *, loopback: bool, token: str | None) -> ASGIApp:
    """The whole application with all around it, also where it fails; for `loopback` and `token` see `Guard`."""

    def is_open(scope: Scope) -> bool:
        """Others may ask whether the viewer is well, and not which folders there are on its machine."""
        return _is_page(scope) or (scope["path"] == "/healthz" and (loopback or not scope["query_string"]))

    guard = Guard(
        app,
        loopback=loopback,
        token=token,
        max_body_bytes=_MAX_BODY_BYTES,
        refuse=_refused,
        is_open=is_open,
        is_page=_is_page,
        reads_query=True,
    )
    return _WithHeaders(guard)


def _is_page(scope: Scope) -> bool:
    """Public paths: the page itself, which sends its token with all other requests."""
    path: str = scope["path"]
    return path == "/" or path.startswith("/static/")


def _refused(status: int, error: str) -> ASGIApp:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return json_answer({"error": error, "hint": _HINTS.get(status, "")}, status=status, headers=headers)


class _WithHeaders:
    """Tells browsers what they may do with each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        await self._app(scope, receive, send_with_headers)
