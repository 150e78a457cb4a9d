"""Whether a service answers at its address, and who holds a port."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import httpx
import psutil

PROBE_S = 2.0
"""Seconds that one look at an address may take."""


def why_not_answering(address: str) -> str | None:
    """None where `address` answers, otherwise why it does not, in words.

    Args:
        address: `http://` or `https://`, which answers with a status below 400; or `tcp://host:port`, which accepts
            connections.
    """
    if address.startswith("tcp://"):
        parts = urlsplit(address)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PROBE_S).close()
        except OSError as cause:
            return cause.strerror or str(cause)
        return None
    try:  # a proxy for the internet has no business with a service beside us
        answer = httpx.get(address, timeout=PROBE_S, trust_env=False, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as cause:
        return str(cause) or type(cause).__name__
    return None if answer.status_code < 400 else f"it answers with HTTP status {answer.status_code}"


def port_of(address: str) -> int | None:
    """The port of an address, the scheme's own where none is written."""
    parts = urlsplit(address)
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def listener_of(port: int) -> psutil.Process | None:
    """The process that listens on a port of this machine; None where nobody does, or it may not be seen."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS shows them to root alone
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return psutil.Process(connection.pid)
            except psutil.NoSuchProcess:
                return None
    return None


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def describe_listener(port: int) -> str:
    """`process 77 (python server.py)`, or how to find out."""
    process = listener_of(port)
    if process is None:
        return f"a process that is not yours to see (`ss -ltnp 'sport = :{port}'` as root shows it)"
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        command = "?"
    return f"process {process.pid} ({command[:80]})"
