"""How many calls run at once."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from astune.sandbox import Sandbox, SandboxConfig, SandboxLimits, SandboxResult
from astune.schema import start_in_thread

SLEEP = "import time; time.sleep(0.4)"


@pytest.fixture
def limit_mb(monkeypatch: pytest.MonkeyPatch) -> int:
    """The memory of the container that this seems to be, in MiB."""
    limit_mb, read = 4000, Path.read_text

    def text(path: Path, *given: str, **named: str) -> str:
        return f"{limit_mb << 20}\n" if path == Path("/sys/fs/cgroup/memory.max") else read(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", text)
    return limit_mb


@pytest.mark.slow
@pytest.mark.parametrize(("share", "places"), [(2.5, 2), (0.1, 1)])
def test_all_calls_at_once_fit_into_half_of_the_memory(limit_mb: int, share: float, places: int):
    config = SandboxConfig(memory_mb=int(limit_mb / 2 / share))

    async def run() -> float:
        async with Sandbox.open(config) as sandbox:
            began = time.monotonic()
            results = await asyncio.gather(*(sandbox.run(SLEEP, timeout_s=10) for _ in range(3 * places)))
            assert [result.ended_by for result in results] == ["exit"] * 3 * places
            return time.monotonic() - began

    assert asyncio.run(run()) >= 1.2  # three times as many as have a place


def test_a_time_that_is_none_is_refused_before_anything_runs():
    async def run(timeout_s: float) -> None:
        async with Sandbox.open() as sandbox:
            await sandbox.run("pass", timeout_s=timeout_s)

    for timeout_s in (float("nan"), -5.0, -20.0, 0.0):
        with pytest.raises(ValueError, match="above 0"):
            asyncio.run(run(timeout_s))


class Holds:
    """A backend that runs nothing, and counts its calls at once; one that waits ends when two are inside."""

    name = "holds"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0
        self.all_inside = threading.Event()

    async def start(self) -> None: ...

    async def run(self, code: str, limits: SandboxLimits, *, name: str) -> SandboxResult:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == 2:
                self.all_inside.set()
        try:
            await asyncio.sleep(0.001)
            if code == "wait":
                await asyncio.to_thread(self.all_inside.wait, 60)
        finally:
            with self._lock:
                self.inside -= 1
        return SandboxResult(0, "", "", "exit")

    async def aclose(self) -> None: ...


def test_places_are_shared_by_event_loops_and_come_back_from_cancelled_calls(limit_mb: int):
    backend = Holds()
    sandbox = Sandbox(SandboxConfig(memory_mb=limit_mb // 5), backend)

    async def many() -> None:
        for _ in range(20):
            waiting = [asyncio.ensure_future(sandbox.run("pass")) for _ in range(8)]
            await asyncio.sleep(0.002)
            for each in waiting[::3]:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def two() -> None:
        await asyncio.gather(sandbox.run("wait"), sandbox.run("wait"))

    threads = [start_in_thread(lambda: asyncio.run(many()), name="loop") for _ in range(3)]
    for thread in threads:
        thread.result(timeout=60)
    assert (backend.inside, backend.most) == (0, 2)
    backend.all_inside.clear()
    asyncio.run(two())
    assert backend.all_inside.is_set(), "both places came back"
