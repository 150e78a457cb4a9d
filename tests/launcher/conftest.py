"""What the launcher's tests share: a marker for their processes, a free port, a record of processes of their own."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from launcher_helpers import with_marker


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "astune" / "processes"


@pytest.fixture
def marker() -> Iterator[str]:
    """An argument that no other process has; what still has it afterwards is ended."""
    found = f"marker-{uuid.uuid4().hex}"
    yield found
    for process in with_marker(found):
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
