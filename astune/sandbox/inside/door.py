"""The door of a network namespace: a socket that listens inside, and is answered from outside.

A socket belongs to the namespace in which it was made, and its descriptor works in any. So the process that accepts
connections here stays outside, and connects each to the one address that the door leads to.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import threading

from . import libc

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CONNECTIONS = 128
"""Connections at once; others wait."""
_PIECE_BYTES = 1 << 16


def open_door(port: int) -> socket.socket:
    """Enter a network namespace with a loopback interface alone, and listen there. Needs CAP_SYS_ADMIN."""
    libc.unshare(libc.CLONE_NEWNET)
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    fcntl.ioctl(listening, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    listening.bind(("127.0.0.1", port))
    listening.listen(_CONNECTIONS)
    return listening


def lead(listening: socket.socket, address: tuple[str, int]) -> None:
    """Connect each connection through the door to `address`, in threads, until the process ends."""
    places = threading.BoundedSemaphore(_CONNECTIONS)

    def accept() -> None:
        while True:
            places.acquire()
            inside, _ = listening.accept()
            threading.Thread(target=_connect, args=(inside, address, places), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _connect(inside: socket.socket, address: tuple[str, int], places: threading.BoundedSemaphore) -> None:
    try:
        with inside, contextlib.suppress(OSError), socket.create_connection(address) as outside:  # nobody may listen
            for end in (inside, outside):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_pass_on, args=(outside, inside), daemon=True)
            back.start()
            _pass_on(inside, outside)
            back.join()
    finally:
        places.release()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Copy a stream to its end, which is passed on too; a broken one ends both directions."""
    try:
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (target, source):
            with contextlib.suppress(OSError):  # it is closed already
                end.shutdown(socket.SHUT_RDWR)
