"""What the launcher's tests share: a marker for their processes, a free port, a record of processes of their own."""

from __future__ import annotations

import socket

import pytest
from launcher_helpers import marker, registry  # noqa: F401


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
