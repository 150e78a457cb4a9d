"""A real environment service in a process of its own, and what tests ask it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from waiting import eventually
from warm_commands import warm_commands

ROOT = Path(__file__).parents[2]
WORLDS = Path(__file__).with_name("service_worlds.py")
_AS_PROGRAM = "import runpy; runpy.run_module('astune.env_service', run_name='__main__', alter_sys=True)"
_READY = re.compile(r"on (http://\S+), up to")


def world(name: str) -> str:
    return f"{WORLDS}->{name}"


class Service:
    """A running server. What it writes to its log is in `log`."""

    def __init__(
        self, env: str, *arguments: str, program: Sequence[str | Path] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.env = env
        self.log = ""
        command = [*(program or (sys.executable, "-m", "astune.env_service", "--env", env)), *arguments]
        if "--port" not in arguments:
            command += ["--port", "0"]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(variables or {"PYTHONPATH": str(ROOT)})},
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        eventually(lambda: _READY.search(self.log) or self.process.poll() is not None, "the server to start", 240)
        found = _READY.search(self.log)
        assert found, self.log
        self.url = found[1]
        self.port = int(self.url.rpartition(":")[2])

    def post(self, endpoint: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/{endpoint}", json=body, timeout=60, trust_env=False, verify=False)

    def create(self, instance_id: str, task_id: str = "a") -> httpx.Response:
        return self.post("create", instance_id=instance_id, task_id=task_id)

    def step(self, instance_id: str, content: str, **params: Any) -> httpx.Response:
        message = {"role": "assistant", "content": content}
        return self.post("step", instance_id=instance_id, messages=message, params=params)

    def info_of(self, instance_id: str, content: str) -> dict[str, Any]:
        return self.step(instance_id, content).json()["data"]["info"]

    def capacity(self) -> tuple[int, int, int]:
        headers = httpx.get(f"{self.url}/healthz", timeout=60, trust_env=False, verify=False).headers
        live, free, total = (int(headers[f"Env-Instances-{name}"]) for name in ("Live", "Free", "Total"))
        return live, free, total

    def workers(self) -> set[int]:
        """Process ids of the server's children."""
        return children_of(self.process.pid)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(30)
        self._reader.join(30)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line


def refused(*arguments: str, environment: Mapping[str, str] = os.environ) -> str:
    """What a server that cannot start says before it ends with status 2, in a fork."""
    status, _, err = warm_commands().run(ROOT, arguments, environment, 60, _AS_PROGRAM)
    assert status == 2, err
    return err


@contextlib.contextmanager
def running(env: str, *arguments: str, **settings: Any) -> Iterator[Service]:
    service = Service(env, *arguments, **settings)
    try:
        yield service
    finally:
        service.end()


def children_of(pid: int) -> set[int]:
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is more than an entry that nobody collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
