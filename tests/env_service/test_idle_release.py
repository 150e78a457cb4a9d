"""The release of idle instances, with processes that close when a test lets them."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from astune.env_service import _service
from astune.env_service._places import Instance, Places, Refusal
from astune.env_service._service import Service
from astune.env_service._wire import Request
from astune.processes.pool import WorkerPool
from astune.processes.worker import Worker
from astune.schema import Task


class HeldWorker:
    """A process whose close lasts until `may_close`."""

    def __init__(self) -> None:
        self.closes = asyncio.Event()
        self.may_close = asyncio.Event()

    async def call(self, name: str, *, timeout_s: float, **given: Any) -> Any:
        if name == "close":
            self.closes.set()
            await self.may_close.wait()
        return {"state": [], "reward": 0.0, "is_terminated": False, "info": {}}

    async def end(self) -> None:
        self.may_close.set()


class NoPool:
    """Counts the rounds of the search for idle instances, each of which ends with `trim`."""

    def __init__(self) -> None:
        self.looked = asyncio.Event()

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def give_back(self, worker: object) -> None: ...

    async def trim(self) -> None:
        self.looked.set()


async def test_an_instance_that_is_used_while_another_one_closes_is_not_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_service, "LOOK_FOR_IDLE_S", 0.01)
    pool = NoPool()
    places = Places(cast(WorkerPool, pool), 2)
    service = Service(places, env="calculator", idle_release_s=100.0, call_timeout_s=10.0)
    slow, used = HeldWorker(), HeldWorker()
    used.may_close.set()
    for instance_id, worker in (("slow", slow), ("used", used)):
        places.add(
            Instance(
                instance_id,
                Task("t", main_query="x"),
                worker=cast(Worker, worker),
                last_used=time.monotonic() - 200.0,
            )
        )

    async def step() -> tuple[Any, int]:
        return await service.step(Request("calculator", "t", "used", {"role": "assistant", "content": "go"}, {}))

    await service.open()
    try:
        await slow.closes.wait()
        assert (await step())[1] == 1
        slow.may_close.set()
        await pool.looked.wait()
        assert places.find("slow") is None
        assert (await step())[1] == 2
        assert not used.closes.is_set()
        with pytest.raises(Refusal, match="without a call"):
            await service.step(Request("calculator", "t", "slow", {"content": "go"}, {}))
    finally:
        await service.aclose()
