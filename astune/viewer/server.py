"""Serving the viewer: the address that it listens on, its token, and the server itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import uvicorn

from astune.schema import is_loopback
from astune.serving.server import server_config
from astune.viewer._access import new_token
from astune.viewer._conversations import Conversations
from astune.viewer._events import Pulse
from astune.viewer._folder import Folder
from astune.viewer._library import Library
from astune.viewer.app import new_app

_ANSWERS_END_S = 2
"""Seconds that answers have to leave when the server ends."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address that the viewer listens at. `token` is what its API requires, None where only this machine can ask.

    `fragment` is what the page opens with, empty for its beginning.
    """

    host: str
    port: int
    token: str | None
    fragment: str = ""

    @property
    def page(self) -> str:
        """Return the host name for a browser: if every address is listened on, the machine's name."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def url(self) -> str:
        """The page with the token that it needs and what it opens with."""
        return f"{self.page}{f'?token={quote(self.token)}' if self.token is not None else ''}{self.fragment}"


def fragment_of(episode_id: str, run: str = "") -> str:
    """The end of an address at which the page opens with an episode; `run` is empty where the viewer shows one run."""
    return f"#run={quote(run, safe='')}&id={quote(episode_id, safe='')}"


class ViewerServer(uvicorn.Server):
    """Server of a folder, which ends its streams before it waits for pending responses.

    Args:
        path: the folder to show, as `Folder` takes it.
        store: conversations of a served model to show, a file that need not be there yet; None for none.
        host: the name under which it listens.
        token: what the API shall ask for; where others can reach it, one is made if there is none.
        on_ready: receives the address once requests are served.
    """

    def __init__(
        self,
        path: Path,
        host: str,
        token: str | None,
        on_ready: Callable[[Address], object] = lambda _: None,
        *,
        store: Path | None = None,
    ) -> None:
        loopback = is_loopback(host)
        self._host = host
        self._token = new_token() if token is None and not loopback else token
        self._on_ready = on_ready
        self._pulse = Pulse()
        self._library = Library(Folder(path))
        app = new_app(self._library, Conversations(store), self._pulse, loopback=loopback, token=self._token)
        super().__init__(server_config(app, end_s=_ANSWERS_END_S))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Hundreds of runs take a second: while a browser opens the page, they are read already.
            threading.Thread(target=self._library.listed, name="first look", daemon=True).start()
        if self.started and sockets:
            self._on_ready(Address(self._host, sockets[0].getsockname()[1], self._token))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pulse.close()
        await super().shutdown(sockets)
