"""A pool of the service's processes, some of which have died a moment ago."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest
from service_stage import children_of, is_running, world
from waiting import eventually

from astune.env_service.places import Instance, Places, Refusal
from astune.processes.pool import WorkerPool
from astune.processes.worker import Worker
from astune.schema import Task


async def test_a_prepared_process_that_is_not_yet_seen_to_be_dead_is_replaced() -> None:
    pool = WorkerPool(partial(Worker.start, "astune.env_service._worker", world("Prepared"), name="ours"), warm=0)
    await pool.open()
    try:
        dead = await prepared_in(await pool.take())
        kill_unseen(dead)
        assert await prepared_in(await pool.take()) != dead
    finally:
        await pool.aclose()


@pytest.mark.parametrize("kind", ["Counter", "Prepared"])  # started, and forked
@pytest.mark.parametrize("order", ["returned first", "waited for first"])
async def test_a_process_that_is_not_yet_seen_to_be_dead_is_not_given_out(kind: str, order: str) -> None:
    pool = WorkerPool(partial(Worker.start, "astune.env_service._worker", world(kind), name="ours"), warm=0)
    await pool.open()
    returned = await pool.take()
    try:
        dead = await pid_of(returned)
        await returned.call("close", timeout_s=60)
        if order == "returned first":
            await pool.give_back(returned)
            kill_unseen(dead)
            taken = await pool.take()
        else:
            waiting = asyncio.ensure_future(pool.take())
            await asyncio.sleep(0)  # it waits now
            kill_unseen(dead)
            await pool.give_back(returned)
            taken = await waiting
        assert await pid_of(taken) != dead
        await taken.end()
    finally:
        await pool.aclose()


async def test_who_waits_is_not_told_of_a_start_that_failed_while_others_start() -> None:
    kinds = chain(["Counter", "Unready"], repeat("Counter"))
    pool = WorkerPool(
        lambda: Worker.start("astune.env_service._worker", world(next(kinds)), name="ours"),
        warm=1,
    )
    await pool.open()
    earlier = children_of(os.getpid())
    taken = [await pool.take()]
    try:
        starting = await asyncio.to_thread(eventually, lambda: children_of(os.getpid()) - earlier, "another start")
        waiting = asyncio.ensure_future(pool.take())
        await asyncio.sleep(0)  # it waits now
        for pid in starting:
            os.kill(pid, signal.SIGKILL)
        taken.append(await waiting)
        assert await pid_of(taken[1]) not in starting
    finally:
        await asyncio.gather(*(worker.end() for worker in taken))
        await pool.aclose()


def kill_unseen(pid: int) -> None:
    """Kill the process while the loop, which would see its end, stands still."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid), "its end")


async def prepared_in(worker: Worker) -> int:
    return (await info_of(worker))["prepared_in"]


async def pid_of(worker: Worker) -> int:
    return (await info_of(worker))["pid"]


async def info_of(worker: Worker) -> dict[str, int]:
    await worker.call("create", timeout_s=60, instance_id="i", task={"task_id": "a", "main_query": "go"}, seed=0)
    step = await worker.call("step", timeout_s=60, action={"role": "assistant", "content": "pid"})
    return step["info"]


async def test_a_process_that_came_late_is_not_lost_to_an_instance_that_was_released_and_created_again() -> None:
    class Pool:
        def __init__(self) -> None:
            self.ready = asyncio.Event()
            self.returned: list[Any] = []

        async def take(self) -> Any:
            await self.ready.wait()
            return self

        async def give_back(self, worker: Any) -> None:
            self.returned.append(worker)

    pool: Any = Pool()
    places, task = Places(pool, 2), Task("t", main_query="q")
    first = Instance("i", task)
    places.add(first)
    waiting = asyncio.create_task(places.give_worker(first))
    await asyncio.sleep(0)
    await places.end(first, "it was released")
    places.add(Instance("i", task))
    pool.ready.set()
    with pytest.raises(Refusal):
        await waiting
    assert pool.returned == [pool]
