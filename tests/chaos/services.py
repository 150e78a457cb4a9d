"""An environment service that is killed, stopped, started again, and looked over for what it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from ports import free_port

if TYPE_CHECKING:
    from chaos_stage import Nursery

_SETTLES_WITHIN_S = 30.0
_KEPT = 12
"""Idle processes that a service keeps for the next instances, each with five files: no leak."""
_HOSTS = re.compile(r"on (http://\S+), up to")


class Service:
    """An environment service that can be killed and started again at the same port."""

    def __init__(self, nursery: Nursery, folder: Path, idle_release_s: float = 4) -> None:
        self._nursery, self._folder, self._idle_release_s = nursery, folder, idle_release_s
        self.port = free_port()

    async def start(self) -> None:
        log = self._folder / f"service-{uuid.uuid4().hex}.log"
        words = (
            "--env",
            "calculator",
            "--port",
            str(self.port),
            "--idle-release-s",
            f"{self._idle_release_s:g}",
            "--warm",
            "1",
            "--max-instances",
            str(_KEPT),
        )
        self.pid = await self._nursery.start(
            self._folder, log, "astune.env_service.__main__", *words, CHAOS="", TMPDIR=str(self._folder)
        )
        await until(lambda: _HOSTS.search(log.read_text() if log.exists() else ""), "the service to listen")
        await self.settled()
        self._files, self._children = self._n_files(), len(_children(self.pid))

    async def settled(self) -> None:
        """Nobody's instance is left."""
        async with httpx.AsyncClient(trust_env=False) as client:

            async def live() -> int:
                answer = await client.get(f"http://127.0.0.1:{self.port}/healthz", timeout=_SETTLES_WITHIN_S)
                return int(answer.headers["Env-Instances-Live"])

            await until(live, "the last instance to be released", wanted=0)

    async def assert_as_before(self) -> None:
        await self.settled()
        most = self._files + 5 * _KEPT
        await until(lambda: self._n_files() <= most, f"the service to have at most {most} files open")
        most_children = self._children + _KEPT
        await until(
            lambda: len(_children(self.pid)) <= most_children, f"at most {most_children} processes of the service"
        )

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self._nursery.ended(self.pid)

    def kill_instances(self) -> None:
        for pid in _children(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _n_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


async def until(condition: Any, what: str, *, wanted: Any = None, within_s: float = _SETTLES_WITHIN_S) -> Any:
    """What `condition` gives, or its coroutine, once that is `wanted`, or true where nothing is."""
    give_up = time.monotonic() + within_s
    while True:
        found = condition()
        found = await found if asyncio.iscoroutine(found) else found
        if found if wanted is None else found == wanted:
            return found
        assert time.monotonic() < give_up, f"waited {within_s:g} s for {what}: {found}"
        await asyncio.sleep(0.03)


def _children(pid: int) -> list[int]:
    """Processes below one, whichever of its threads started them."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in children.read_text().split()]
    return found
