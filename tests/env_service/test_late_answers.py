"""Answers of a real service that are late or never come: they are asked for again, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faulty_wire import FaultyWire
from service_stage import Service, running, world
from services import until
from waiting import eventually

from astune.env_service import client
from astune.env_service.client import ServiceHandle
from astune.schema import EnvError, Task

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped by signals")]
TIMEOUT_S = 6.0
TICK_S = 0.05
GO = {"role": "assistant", "content": "go"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(world("Counter"), "--max-instances", "8") as service:
        yield service


@pytest.fixture(scope="module")
def slow_service() -> Iterator[Service]:
    with running(world("Slow"), "--max-instances", "8") as service:
        yield service


@asynccontextmanager
async def wired(service: Service) -> AsyncIterator[tuple[FaultyWire, ServiceHandle]]:
    """A wire to the service, and a handle whose service is known to apply a repeated call once."""
    wire = FaultyWire(service.port)
    port = await wire.open()
    try:
        first = handle_at(port, service.env)
        await first.create()
        await first.release()
        wire.met.clear()
        yield wire, handle_at(port, service.env)
    finally:
        wire.close()


@asynccontextmanager
async def ticks() -> AsyncIterator[list[float]]:
    """The moments of a clock that stands still while this process is kept from running."""
    passed: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            passed.append(time.monotonic())

    ticking = asyncio.ensure_future(tick())
    try:
        yield passed
    finally:
        ticking.cancel()


def handle_at(port: int, env: str) -> ServiceHandle:
    return ServiceHandle(f"http://127.0.0.1:{port}", env, Task("a", "q"), 0, timeout_s=TIMEOUT_S)


async def cut_once(wire: FaultyWire, call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a call whose first answer stays half; it came before half of the deadline was over."""
    wire.met.clear()
    wire.go_wrong(("cut",), 1.0, 0)
    async with ticks() as passed:
        asking = asyncio.ensure_future(call)
        await until(lambda: wire.met["cut"], "an answer to be cut")
        wire.go_wrong((), 0.0, 0)
        result = await asking
    assert wire.met[""] >= 1
    assert len(passed) * TICK_S < TIMEOUT_S / 2
    return result


async def test_a_cut_answer_is_asked_for_again_after_a_part_of_the_deadline(service):
    async with wired(service) as (wire, handle):
        state = await cut_once(wire, handle.create())
        assert state.state == [{"role": "user", "content": "task a"}]
        for number in (1, 2):
            step = await cut_once(wire, handle.step(GO))
            assert step.state == [{"role": "user", "content": f"step {number}"}]
        assert await cut_once(wire, handle.evaluate()) == 1.0
        assert (await cut_once(wire, handle.get_info())).startswith("2 steps")
        await cut_once(wire, handle.release())
    assert service.capacity()[0] == 0


async def test_episodes_over_a_wire_that_cuts_a_third_of_all_answers_take_each_step_once(service):
    async with wired(service) as (wire, _):
        port = int(wire._server.sockets[0].getsockname()[1])
        wire.go_wrong(("cut",), 0.33, 1)

        async def played() -> list[str]:
            handle = handle_at(port, service.env)
            await handle.create()
            said = [(await handle.step(GO)).state[0]["content"] for _ in range(4)]
            await handle.release()
            return said

        assert await asyncio.gather(*(played() for _ in range(4))) == [[f"step {n}" for n in range(1, 5)]] * 4
        assert wire.met["cut"] > 4
    assert service.capacity()[0] == 0


async def test_what_is_slow_and_honest_is_done_once_and_answered(slow_service):
    async with wired(slow_service) as (wire, handle):
        await handle.create()
        assert wire.met[""] >= 2
        assert (await handle.step(GO)).state == [{"role": "user", "content": "step 1"}]
        assert wire.met[""] >= 4
        assert (await handle.step(GO)).state == [{"role": "user", "content": "step 2"}]
        assert await handle.evaluate() == 1.0
        assert wire.met[""] >= 8
        await handle.release()
        assert wire.met[""] >= 10
    eventually(lambda: slow_service.log.count("closed") == 2, "the message of each close")
    closes = [line for line in slow_service.log.splitlines() if "closed" in line]
    assert closes == ["closed after 0 steps and 0 evaluations", "closed after 2 steps and 1 evaluations"]


async def test_a_stopped_service_ends_a_call_by_its_deadline_and_not_before(service):
    async with wired(service) as (wire, handle):
        await handle.create()
        os.kill(service.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            async with ticks() as passed:
                with pytest.raises(EnvError, match=r"no answer for 5\.7 s; .*raise rollout.call_timeout_s"):
                    await handle.step(GO)
            assert time.monotonic() - began > 0.9 * TIMEOUT_S
            assert len(passed) * TICK_S < 1.2 * TIMEOUT_S
            assert wire.met[""] > 5
        finally:
            os.kill(service.process.pid, signal.SIGCONT)
        await handle.release()


async def test_a_service_that_was_stopped_for_less_takes_the_step_once(service):
    async with wired(service) as (_, handle):
        await handle.create()
        os.kill(service.process.pid, signal.SIGSTOP)
        asking = asyncio.ensure_future(handle.step(GO))
        await asyncio.sleep(TIMEOUT_S / 3)
        os.kill(service.process.pid, signal.SIGCONT)
        assert (await asking).state == [{"role": "user", "content": "step 1"}]
        assert (await handle.step(GO)).state == [{"role": "user", "content": "step 2"}]
        await handle.release()


async def test_a_release_that_was_answered_with_an_error_on_the_way_is_asked_for_again(service):
    async with wired(service) as (wire, handle):
        await handle.create()
        wire.go_wrong(("500",), 1.0, 0)
        releasing = asyncio.ensure_future(handle.release())
        await until(lambda: wire.met["500"], "an error")
        wire.go_wrong((), 0.0, 0)
        await releasing
    assert service.capacity()[0] == 0


async def test_an_environment_that_does_not_close_stays_an_error_when_its_release_is_repeated():
    with running(world("Unclosed"), "--max-instances", "2") as service:
        handles = [handle_at(service.port, service.env) for _ in range(2)]
        for handle in handles:
            await handle.create()
            with pytest.raises(EnvError, match=r"500 instance .*the door is stuck"):
                await handle.release()
        assert service.capacity()[0] == 0


async def test_a_release_has_a_deadline_of_its_own(service, monkeypatch):
    handle = handle_at(service.port, service.env)
    await handle.create()
    monkeypatch.setattr(client, "RELEASE_S", 1.0)
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(EnvError, match=r"no answer for 0\.95 s"):
            await handle.release()
    finally:
        os.kill(service.process.pid, signal.SIGCONT)
    eventually(lambda: service.capacity()[0] == 0, "the release")
