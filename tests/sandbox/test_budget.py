"""How many calls run at once."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from astune.sandbox import Sandbox, SandboxConfig
from astune.sandbox._budget import Budget, machine_bytes, places_for
from astune.schema import start_in_thread

SLEEP = "import time; time.sleep(0.4)"


def test_all_calls_at_once_fit_into_half_of_the_memory():
    config = SandboxConfig(memory_mb=int(machine_bytes() / 2 / 2**20 / 2.5))
    assert places_for(config.memory_mb) == 2
    assert places_for(1 << 40) == 1

    async def run() -> float:
        async with Sandbox.open(config) as sandbox:
            began = time.monotonic()
            results = await asyncio.gather(*(sandbox.run(SLEEP, timeout_s=10) for _ in range(6)))
            assert [result.ended_by for result in results] == ["exit"] * 6
            return time.monotonic() - began

    assert asyncio.run(run()) >= 1.2  # three times two


def test_a_time_that_is_none_is_refused_before_anything_runs():
    async def run(timeout_s: float) -> None:
        async with Sandbox.open() as sandbox:
            await sandbox.run("pass", timeout_s=timeout_s)

    for timeout_s in (float("nan"), -5.0, -20.0, 0.0):
        with pytest.raises(ValueError, match="above 0"):
            asyncio.run(run(timeout_s))


def test_places_are_shared_by_event_loops_and_come_back_from_cancelled_calls():
    budget = Budget(2)
    lock = threading.Lock()
    inside: list[int] = []
    most = 0

    async def hold() -> None:
        nonlocal most
        async with budget.place():
            with lock:
                inside.append(1)
                most = max(most, len(inside))
            try:
                await asyncio.sleep(0.001)
            finally:
                with lock:
                    inside.pop()

    async def many() -> None:
        for _ in range(20):
            waiting = [asyncio.ensure_future(hold()) for _ in range(8)]
            await asyncio.sleep(0.002)
            for each in waiting[::3]:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    threads = [start_in_thread(lambda: asyncio.run(many()), name="loop") for _ in range(3)]
    for thread in threads:
        thread.result(timeout=60)
    assert (most, budget._free) == (2, 2)
