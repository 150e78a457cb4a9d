"""Starter side of a Python process that answers calls, one at a time, and ends with this one.

`tied.py` is the process side. It runs a module with the arguments CHANNEL CONTROL and its own. First it reports
`{"ready": {"pid": int, "reusable": bool, "forks": bool}}`, or `{"unusable": {"message", "hint"}}`. A process that
`forks` answers no calls: it is prepared once, and others are forked from it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from astune.processes.ending import how_it_ended, kill_group
from astune.processes.link import LENGTH
from astune.processes.records import started_at
from astune.processes.scratch import Scratch
from astune.schema import EnvError
from astune.schema.plain_json import encoded

STARTS_S = 240.0
"""Seconds that a process may take to start: it imports what it hosts."""
ENDS_S = 10.0

_STDERR = 2
"""Stream for a process's output; the channel is a separate socket."""


class CallFailed(Exception):
    """The process raised; `is_refusal` if it was a typed error with a hint."""

    def __init__(self, detail: str, *, is_refusal: bool) -> None:
        super().__init__(detail)
        self.is_refusal = is_refusal


class WorkerLost(Exception):
    """The process ended, or was ended, during a call."""


class Ties:
    """Connections of a process to this one: a channel, a lifeline whose end is the process's end, and a folder for its
    temporary files, since a killed process removes none."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lifeline: int) -> None:
        self.reader = reader
        self.writer = writer
        self.folder = Scratch("env")
        self.control: socket.socket | None = None
        """Control socket over which a forking process receives the connections of each fork; None if it does not
        fork."""
        self._lifeline = lifeline

    @classmethod
    @asynccontextmanager
    async def new(cls) -> AsyncIterator[tuple[Ties, socket.socket, int]]:
        """Yield ties with the process's ends of channel and lifeline, to hand over within; a failure there cuts all."""
        own_end, child_end = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=own_end)
        their_end, lifeline = os.pipe()
        ties = cls(reader, writer, lifeline)
        try:
            yield ties, child_end, their_end
        except BaseException:
            ties.cut()
            ties.folder.remove()
            raise
        finally:
            child_end.close()
            os.close(their_end)

    def cut(self) -> None:
        """Close channel and lifeline, which alone ends the process where the system can do that. Idempotent."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            self.writer.close()
        if self.control is not None:
            self.control.close()


class Worker:
    """A child process. Calls do not overlap; after a lost one only `end` may be used.

    Args:
        exited: the process's exit status once it has ended, None if only its parent knows it.
        name: name of the process in errors.
        pid: 0 if the process reports it.
    """

    def __init__(self, ties: Ties, exited: asyncio.Future[int | None], *, name: str, pid: int = 0) -> None:
        self.reusable = False
        self.forks = False
        self.idle_since = 0.0
        self._ties = ties
        self._exited = exited
        self._name = name
        self._pid = pid

    @classmethod
    async def start(cls, module: str, *arguments: str, name: str) -> Worker:
        """Start a process that runs `module` and answers calls, or that `forks` others that do.

        Raises:
            EnvError: it reports that it is unusable.
            WorkerLost: the process ended, or was not ready in time.
        """
        async with Ties.new() as (ties, channel, lifeline):
            ties.control, control = socket.socketpair()
            with control:
                passed = [channel.fileno(), control.fileno()]
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", module, *map(str, passed), *arguments),
                    stdin=lifeline,
                    stdout=_STDERR,
                    pass_fds=passed,
                    env={**os.environ, "TMPDIR": str(ties.folder.path)},
                    start_new_session=True,
                )
        worker = cls(ties, asyncio.ensure_future(_status(process)), name=name, pid=process.pid)
        await worker._get_ready()
        return worker

    async def fork(self) -> Worker:
        """Fork a process that answers calls from this one.

        Raises:
            OSError, WorkerLost: one of the two has ended.
        """
        if self._ties.control is None:
            raise WorkerLost("a process that was forked forks no others")
        async with Ties.new() as (ties, channel, lifeline):
            folder = os.fsencode(ties.folder.path)
            socket.send_fds(self._ties.control, [folder], [channel.fileno(), lifeline])
        worker = Worker(ties, asyncio.get_running_loop().create_future(), name=self._name)
        await worker._get_ready()
        return worker

    @property
    def is_running(self) -> bool:
        """Whether the process exists, asked of the system: the loop learns of an end a moment later."""
        return not self._exited.done() and started_at(self._pid) is not None

    async def call(self, name: str, *, timeout_s: float, **given: Any) -> Any:
        """Return what the process answers.

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
        """Kill the process and what it started, and remove its files. Idempotent."""
        self._ties.cut()
        pid, self._pid = self._pid, 0
        if pid:
            kill_group(pid)
            await asyncio.wait({self._exited}, timeout=ENDS_S)
        await asyncio.to_thread(self._ties.folder.remove)

    async def _get_ready(self) -> None:
        try:
            answer = await self._within(STARTS_S, self._receive(), "starting")
            if "ready" not in answer:
                raise EnvError(answer["unusable"]["message"], hint=answer["unusable"]["hint"])
        except BaseException:
            await self.end()
            raise
        self.reusable = answer["ready"]["reusable"]
        self.forks = answer["ready"]["forks"]
        if not self._pid:
            self._pid = answer["ready"]["pid"]
            _settle_at_end(self._exited, self._pid)

    async def _exchange(self, frame: bytes) -> dict[str, Any]:
        self._ties.writer.write(LENGTH.pack(len(frame)) + frame)
        await self._ties.writer.drain()
        return await self._receive()

    async def _receive(self) -> dict[str, Any]:
        [size] = LENGTH.unpack(await self._ties.reader.readexactly(LENGTH.size))
        return json.loads(await self._ties.reader.readexactly(size))

    async def _within(self, timeout_s: float, work: Coroutine[Any, Any, dict[str, Any]], what: str) -> dict[str, Any]:
        answer = asyncio.ensure_future(work)
        how = f"took longer than {timeout_s:g} s"
        try:
            await asyncio.wait({answer, self._exited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        except (OSError, asyncio.IncompleteReadError):  # mostly a moment before the process is seen to have ended
            await asyncio.wait({self._exited}, timeout=ENDS_S)
            how = "closed its channel"
        finally:
            answer.cancel()
        if self._exited.done():
            how = f"{how_it_ended(self._exited.result())}; what it printed may say why"
        raise WorkerLost(f"{what}: {self._name} {how}")


async def _status(process: asyncio.subprocess.Process) -> int | None:
    return await process.wait()


def _settle_at_end(exited: asyncio.Future[int | None], pid: int) -> None:
    """Set the result of `exited` when a process has ended that is not a child of this one."""
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
