"""A port for a server that is told its port before it starts."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port that nobody has, below those that the system gives to whoever binds port 0 or connects meanwhile,
    and above those that Ray keeps for its workers."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
