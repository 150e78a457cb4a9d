"""An agent that blocks the event loop is named and ended, and the other episodes go on."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import pytest
from rollout_stage import Stage, task

from astune import AstuneProxy, Task, Workflow
from astune.rollout import blocked_loop

HERE = __file__.rpartition("/")[2]


def sleeps() -> None:
    time.sleep(60)


def spins() -> None:
    while True:
        pass


def waits_for_an_answer() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    connected = socket.create_connection(listening.getsockname())
    connected.recv(1)


class Blocks(Workflow):
    how: Callable[[], None] = staticmethod(sleeps)

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(proxy.init_messages)
        if task.task_id == "blocks":
            type(self).how()
        await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("how", [sleeps, spins, waits_for_an_answer])
def test_it_is_ended_where_it_stands_and_others_go_on(
    stage: Callable[..., Stage],
    how: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`time.sleep(40)` inside of `async execute` stood 40 s against a deadline of 3 s."""
    allowed: list[float] = []
    watched = blocked_loop.watched_loop
    monkeypatch.setattr("astune.rollout.pool.watched_loop", lambda s: allowed.append(s) or watched(s / 20))

    class Agent(Blocks):
        pass

    Agent.how = staticmethod(how)
    before = signal.getsignal(signal.SIGURG)
    began = time.monotonic()
    played = stage(Agent, episode_timeout_s=60.0)
    with caplog.at_level(logging.WARNING):
        blocked, other = asyncio.run(played.play([task("blocks"), task("other")]))
    assert time.monotonic() - began < 50
    assert allowed == [30.0]
    assert blocked.dropped is not None
    error = blocked.failed_attempts[0].error or ""
    assert error.startswith("DeadlineExceeded")
    assert f"{HERE}:" in error
    assert how.__name__ in error
    assert other.dropped is None
    assert any("has blocked the event loop" in record.getMessage() for record in caplog.records)
    assert signal.getsignal(signal.SIGURG) is before


@pytest.mark.slow
def test_in_another_thread_it_is_named(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_loop, "_NAMED_AFTER_S", 0.3)

    def until_named() -> None:
        deadline = time.monotonic() + 30
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)

    class Agent(Blocks):
        how = staticmethod(until_named)

    played = stage(Agent, episode_timeout_s=60.0)
    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=lambda: asyncio.run(played.play([task("blocks")])))
        thread.start()
        thread.join(60)
    (record,) = [record for record in caplog.records if "has blocked the event loop" in record.getMessage()]
    assert HERE in record.getMessage()


def test_the_script_that_runs_the_loop_is_not_what_blocks_it() -> None:
    async def inside() -> str | None:
        return blocked_loop.users_place(sys._getframe())

    assert blocked_loop.users_place(sys._getframe()) is None
    assert HERE in (asyncio.run(inside()) or "")
