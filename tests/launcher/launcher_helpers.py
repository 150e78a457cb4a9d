"""Real processes for the launcher's tests: found again by a marker among their arguments, counted, waited for."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

T = TypeVar("T")

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(b"OK")
    def log_message(self, *arguments): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.serve_forever()
"""
"""Answers at /healthz on the port that is its first argument."""


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


def with_marker(marker: str) -> list[psutil.Process]:
    """Every living process that has the marker among its arguments, except this one."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE or process == psutil.Process():
            continue
        if any(marker in argument for argument in process.info["cmdline"] or []):
            found.append(process)
    return found


def commands_with(marker: str) -> list[psutil.Process]:
    """The same without guardians, whose arguments hold the command's."""
    return [process for process in with_marker(marker) if "_guardian.py" not in " ".join(process.cmdline())]


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]
