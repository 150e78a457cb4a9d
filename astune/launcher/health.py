"""Health checks of services, and the process that holds a port."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import psutil

PROBE_S = 2.0
"""Timeout of one health check in seconds, unless one is named."""
_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without a proxy, which must not be used for local services. httpx would load certificates at each check."""


def why_not_answering(address: str, within_s: float = PROBE_S) -> str | None:
    """Return None if `address` responds, otherwise the reason why not.

    Args:
        address: `http://` or `https://`, which answers with a status below 400; or `tcp://host:port`, which accepts
            connections.
    """
    if address.startswith("tcp://"):
        parts = urlsplit(address)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=within_s).close()
        except (OSError, ValueError) as cause:
            return getattr(cause, "strerror", None) or str(cause)
        return None
    try:
        _without_proxy.open(address, timeout=within_s).close()
    except HTTPError as answer:
        return f"it answers with HTTP status {answer.code}"
    except URLError as cause:
        return getattr(cause.reason, "strerror", None) or str(cause.reason)
    except (OSError, http.client.HTTPException, ValueError) as cause:
        return str(cause) or type(cause).__name__
    return None


def origin_of(address: str) -> str:
    """`http://127.0.0.1:8000` of `http://127.0.0.1:8000/health`."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def port_of(address: str) -> int | None:
    """The port of an address, the scheme's own where none is written."""
    parts = urlsplit(address)
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def listener_of(port: int) -> psutil.Process | None:
    """Return the process that listens on a port of this machine; None if there is none, or it is not visible."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS shows them to root alone
        return None
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or getattr(connection.laddr, "port", None) != port:
            continue
        if connection.pid:
            try:
                return psutil.Process(connection.pid)
            except psutil.NoSuchProcess:
                return None
    return None


def port_is_free(port: int) -> bool:
    """Return whether a server could listen there now, for this machine alone."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def describe_listener(port: int) -> str:
    """`process 77 (python server.py; kill 77 ends it)`, or how to find out."""
    process = listener_of(port)
    if process is None:
        return f"a process that is not yours to see (`ss -ltnp 'sport = :{port}'` as root shows it)"
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "?"
    return f"process {process.pid} ({command[:80]}; `kill {process.pid}` ends it)"
