"""A channel between two processes: length-prefixed JSON frames, and the dispatch of requests.

A request is `{"call": name, "given": {...}}`, an answer `{"data": ...}`, or `{"refused": text}` for a typed error with
a hint, or `{"failed": text}`.
"""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from typing import Any

from astune.schema import AstuneError
from astune.schema.plain_json import encoded, shortened

LENGTH = struct.Struct(">Q")

_log = logging.getLogger(__name__)


class Link:
    """Own end of the channel; `largest` is the maximum frame size accepted from the other end."""

    def __init__(self, channel: socket.socket, *, largest: int = 1 << 32) -> None:
        channel.set_inheritable(False)
        self._channel = channel
        self._largest = largest

    def send(self, frame: bytes) -> None:
        self._channel.settimeout(None)
        self._channel.sendall(LENGTH.pack(len(frame)) + frame)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next frame; None if the other end is closed.

        Raises:
            TimeoutError: no complete frame arrived within `timeout_s`.
            ValueError: it is too large, or not a JSON object.
        """
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        head = self._exactly(LENGTH.size, give_up)
        if head is None:
            return None
        [size] = LENGTH.unpack(head)
        if size > self._largest:
            raise ValueError(f"a frame of {size} bytes")
        body = self._exactly(size, give_up)
        return None if body is None else _object_in(body)

    def close(self) -> None:
        self._channel.close()

    def _exactly(self, size: int, give_up: float | None) -> bytes | None:
        parts = b""
        while len(parts) < size:
            if give_up is not None:
                self._channel.settimeout(max(0.001, give_up - time.monotonic()))
            try:
                part = self._channel.recv(size - len(parts))
            except ConnectionResetError:  # it was closed with something unread
                part = b""
            if not part:
                return None
            parts += part
        return parts


def _object_in(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except RecursionError as cause:
        raise ValueError("a frame that is nested too deeply") from cause
    if not isinstance(found, dict):
        raise ValueError(f"a frame with {type(found).__name__}")
    return found


def serve(link: Link, target: object) -> None:
    """Answer requests by calling the target's methods, until the other end is closed."""
    while (request := link.receive()) is not None:
        link.send(_answer(request, target))


def _answer(request: dict[str, Any], target: object) -> bytes:
    """Whatever is raised becomes an answer."""
    try:
        return encoded({"data": getattr(target, request["call"])(**request["given"])})
    except AstuneError as error:
        return encoded({"refused": shortened(str(error))})
    except Exception as cause:
        _log.exception("%s failed", request["call"])
        return encoded({"failed": shortened(f"{type(cause).__name__}: {cause}")})
