"""The processes of an environment service: started before they are needed, one for each live instance.

The server's process never runs an environment's code. A process that closed its instance without any failure is used
again, unless the class says `fresh_process`; any other is killed, with everything that it started. Where the class says
that it `forks`, one process is prepared and hosts nothing, and all others are forked from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from astune.env_service._link import LENGTH
from astune.env_service._wire import encoded
from astune.schema import EnvError

STARTS_S = 240.0
"""Seconds that a process may take to import its environment."""
IDLE_S = 60.0
"""Seconds after which an idle process beyond those that are kept warm is ended."""
ENDS_S = 10.0

_WORKER = "astune.env_service._worker"
_STDERR = 2
"""Where what an environment prints goes; the channel is a socket of its own."""

_log = logging.getLogger(__name__)


class CallFailed(Exception):
    """The environment raised; `is_refusal` where it was a typed error that says what to do."""

    def __init__(self, detail: str, *, is_refusal: bool) -> None:
        super().__init__(detail)
        self.is_refusal = is_refusal


class WorkerLost(Exception):
    """The process ended, or was ended, during a call."""


class Unusable(EnvError):
    """No process can host this environment."""


class Cord:
    """What ties a process to the server: a channel to talk over, and a lifeline, whose end is the process's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lifeline: int) -> None:
        self.reader = reader
        self.writer = writer
        self._lifeline = lifeline

    @classmethod
    async def new(cls) -> tuple[Cord, socket.socket, int]:
        """A cord, and the process's ends of its channel and of its lifeline."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        their_end, lifeline = os.pipe()
        return cls(reader, writer, lifeline), theirs, their_end

    def cut(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self.writer.close()


class Worker:
    """One process, which hosts one instance at a time. Calls do not overlap; after a lost one only `end` is of use.

    Args:
        exited: the process's exit status once it has ended, None where only its parent knows.
        folder: of its temporary files, which end with it.
        pid: 0 where the process itself will say.
        control: where it `forks`, the socket over which it gets what a process needs.
    """

    def __init__(
        self,
        cord: Cord,
        exited: asyncio.Future[int | None],
        *,
        folder: tempfile.TemporaryDirectory[str],
        pid: int = 0,
        control: socket.socket | None = None,
    ) -> None:
        self.reusable = False
        self.forks = False
        self.idle_since = 0.0
        self._cord = cord
        self._exited = exited
        self._folder = folder
        self._pid = pid
        self._control = control

    @classmethod
    async def start(cls, env: str) -> Worker:
        """A process that can host `env`, or that `forks` others which can.

        Raises:
            Unusable: it cannot be hosted, as the process says.
            WorkerLost: the process ended, or was not ready in time.
        """
        folder = _new_folder()
        cord, channel, lifeline = await Cord.new()
        control, its_control = socket.socketpair()
        passed = [channel.fileno(), its_control.fileno()]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _WORKER, *map(str, passed), env),
                stdin=lifeline,
                stdout=_STDERR,
                pass_fds=passed,
                env={**os.environ, "TMPDIR": folder.name},
                start_new_session=True,
            )
        except BaseException:
            cord.cut()
            control.close()
            folder.cleanup()
            raise
        finally:
            channel.close()
            its_control.close()
            os.close(lifeline)
        worker = cls(cord, asyncio.ensure_future(_status(process)), folder=folder, pid=process.pid, control=control)
        await worker._get_ready()
        return worker

    async def fork(self) -> Worker:
        """A process that hosts the same, forked from this one.

        Raises:
            OSError, WorkerLost: one of the two has ended.
        """
        if self._control is None:
            raise WorkerLost("a process that was forked forks no others")
        folder = _new_folder()
        cord, channel, lifeline = await Cord.new()
        try:
            socket.send_fds(self._control, [os.fsencode(folder.name)], [channel.fileno(), lifeline])
        except BaseException:
            cord.cut()
            folder.cleanup()
            raise
        finally:
            channel.close()
            os.close(lifeline)
        worker = Worker(cord, asyncio.get_running_loop().create_future(), folder=folder)
        await worker._get_ready()
        return worker

    @property
    def is_running(self) -> bool:
        return not self._exited.done()

    async def call(self, name: str, *, timeout_s: float, **given: Any) -> Any:
        """What the environment answers.

        Raises:
            CallFailed: it raised.
            WorkerLost: its process ended, or it took longer than `timeout_s`.
        """
        answer = await self._within(timeout_s, self._exchange(encoded({"call": name, "given": given})), name)
        if "data" in answer:
            return answer["data"]
        self.reusable = False
        is_refusal = "refused" in answer
        raise CallFailed(answer["refused" if is_refusal else "failed"], is_refusal=is_refusal)

    async def end(self) -> None:
        """Kill the process and what it started, and remove its files; again, it does nothing."""
        self._cord.cut()  # this alone ends it, where the system can do that
        if self._control is not None:
            self._control.close()
        pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            await asyncio.wait({self._exited}, timeout=ENDS_S)
        await asyncio.to_thread(self._folder.cleanup)

    async def _get_ready(self) -> None:
        try:
            said = await self._within(STARTS_S, self._receive(), "starting")
        except BaseException:
            await self.end()
            raise
        if "ready" not in said:
            await self.end()
            raise Unusable(said["unusable"]["message"], hint=said["unusable"]["hint"])
        self.reusable = not said["ready"]["fresh_process"]
        self.forks = said["ready"]["forks"]
        if not self._pid:
            self._pid = said["ready"]["pid"]
            _settle_at_end(self._exited, self._pid)

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        self._cord.writer.write(LENGTH.pack(len(frame)) + frame)
        await self._cord.writer.drain()
        return await self._receive()

    async def _receive(self) -> dict[str, Any]:
        [size] = LENGTH.unpack(await self._cord.reader.readexactly(LENGTH.size))
        return json.loads(await self._cord.reader.readexactly(size))

    async def _within(self, timeout_s: float, work: Coroutine[Any, Any, dict[str, Any]], what: str) -> dict[str, Any]:
        answer = asyncio.ensure_future(work)
        how = f"took longer than {timeout_s:g} s"
        try:
            await asyncio.wait({answer, self._exited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        except (OSError, asyncio.IncompleteReadError):  # mostly a moment before the process is seen to have ended
            await asyncio.wait({self._exited}, timeout=ENDS_S)
            how = "closed its channel to the server"
        finally:
            answer.cancel()
        if self._exited.done():
            how = f"{_ending(self._exited.result())}; the server's log may say why"
        raise WorkerLost(f"{what}: the environment's process {how}")


class WorkerPool:
    """Processes for one environment: `warm` of them wait ready beside those in use."""

    def __init__(self, env: str, *, warm: int) -> None:
        self._env = env
        self._warm = warm
        self._idle: list[Worker] = []
        self._waiters: deque[asyncio.Future[Worker]] = deque()
        self._starting = 0
        self._template: Worker | None = None
        self._forking = asyncio.Lock()
        self._at_once = asyncio.Semaphore(os.cpu_count() or 1)
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start the first process, which shows whether the environment can be hosted; others follow by themselves."""
        self._keep(await self._start())
        self._refill()

    async def take(self) -> Worker:
        """A process without an instance: a waiting one, or the next that is started or given back.

        Raises:
            OSError, WorkerLost, EnvError: it could not be started.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                self._refill()
                return worker
            await worker.end()
        waiter: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._refill()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._keep(waiter.result())
            raise

    async def give_back(self, worker: Worker) -> None:
        """Take back a process whose instance was closed."""
        if worker.reusable:
            self._keep(worker)
        else:
            await worker.end()
            self._refill()

    async def trim(self) -> None:
        """End processes that nobody needed for a while, the longest idle first."""
        while len(self._idle) > self._warm and time.monotonic() - self._idle[0].idle_since > IDLE_S:
            await self._idle.pop(0).end()

    async def aclose(self) -> None:
        self._warm = 0
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(WorkerLost("the server ends"))
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        kept = [*self._idle, *([self._template] if self._template is not None else [])]
        await asyncio.gather(*(worker.end() for worker in kept))
        self._idle.clear()

    def _keep(self, worker: Worker) -> None:
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(worker)
            return
        worker.idle_since = time.monotonic()
        self._idle.append(worker)

    def _next_waiter(self) -> asyncio.Future[Worker] | None:
        """Who waits longest, no longer among those who wait."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # it is when its caller was cancelled
                return waiter
        return None

    async def _start(self) -> Worker:
        async with self._at_once:
            if self._template is None:
                worker = await Worker.start(self._env)
                if not worker.forks:
                    return worker
                self._template = worker
            async with self._forking:
                if not self._template.is_running:
                    await self._template.end()
                    self._template = await Worker.start(self._env)
                return await self._template.fork()

    def _refill(self) -> None:
        while len(self._idle) + self._starting < self._warm + len(self._waiters):
            self._starting += 1
            task = asyncio.ensure_future(self._start_one_more())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _start_one_more(self) -> None:
        try:
            self._keep(await self._start())
        except (OSError, WorkerLost, EnvError) as failure:
            waiter = self._next_waiter()
            if waiter is not None:
                waiter.set_exception(failure)
            else:
                _log.warning("a process could not be started in advance: %s", failure)
        finally:
            self._starting -= 1


async def _status(process: asyncio.subprocess.Process) -> int | None:
    return await process.wait()


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    """For a process's temporary files, since one that is killed removes none."""
    return tempfile.TemporaryDirectory(prefix="astune-env-", ignore_cleanup_errors=True)


def _settle_at_end(exited: asyncio.Future[int | None], pid: int) -> None:
    """Give `exited` its result when a process has ended that is no child of this one."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        exited.set_result(None)
        return

    def settle() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        exited.set_result(None)

    loop.add_reader(descriptor, settle)


def _ending(status: int | None) -> str:
    if status is None:
        return "ended"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
