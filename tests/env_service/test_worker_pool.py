"""A pool of the service's processes, when the one that all are forked from has just died."""

from __future__ import annotations

import os
import signal
from functools import partial

from service_stage import is_running, world
from waiting import eventually

from astune.processes.pool import WorkerPool
from astune.processes.worker import Worker


async def test_a_prepared_process_that_is_not_yet_seen_to_be_dead_is_replaced() -> None:
    pool = WorkerPool(partial(Worker.start, "astune.env_service._worker", world("Prepared"), name="ours"), warm=0)
    await pool.open()
    try:
        dead = await prepared_in(await pool.take())
        os.kill(dead, signal.SIGKILL)
        eventually(lambda: not is_running(dead), "its end")  # the loop, which would see it, stands still meanwhile
        assert await prepared_in(await pool.take()) != dead
    finally:
        await pool.aclose()


async def prepared_in(worker: Worker) -> int:
    await worker.call("create", timeout_s=60, instance_id="i", task={"task_id": "a", "main_query": "go"}, seed=0)
    step = await worker.call("step", timeout_s=60, action={"role": "assistant", "content": "pid"})
    return step["info"]["prepared_in"]
