"""What the page's tests start and wait for."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from astune_command import start


def overrides(values: dict[str, object]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


class Served:
    """`astune view` as a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = start(folder, "view", *arguments, "--port", "0", "--no-open")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line + self.process.communicate(timeout=30)[1]
        self.url = found[0]

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise


def until(page: Any, question: str, *, timeout_s: float = 15) -> None:
    """Waits until an expression is true in the page; Playwright's own way would need `eval`, which the policy forbids."""
    deadline = time.monotonic() + timeout_s
    while not page.evaluate(question):
        assert time.monotonic() < deadline, f"{question} did not become true"
        page.wait_for_timeout(50)
