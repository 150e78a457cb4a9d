"""The warden of one call: it forks the guest, watches time and memory, kills leftover processes, and reports.

It is outside of the guest's confinement and shares nothing with it but a pipe, over which the guest reports a failure
to confine itself and which is closed before any code runs. So the code cannot forge the warden's reports. With
namespaces, the warden is the first process of the call's PID namespace: if it ends, for whatever reason, the kernel
kills all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from typing import Any

from . import confine, family, libc
from .filling import Quota
from .removal import remove_all
from .walls import Walls

_WATCH_S = 0.05
"""Seconds between looks at the memory of all of a call's processes together."""


class Call:
    """A request: its limits, and the descriptors that came with it."""

    def __init__(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self.timeout_s: float = request["timeout_s"]
        self.memory_mb: int = request["memory_mb"]
        self.processes: int = request["processes"]
        self.channel, self.code, self.stdout, self.stderr = descriptors

    def close(self) -> None:
        for descriptor in (self.channel, self.code, self.stdout, self.stderr):
            os.close(descriptor)


class Warden:
    """`watch` returns in the guest only, with the code that it shall run."""

    def __init__(self, call: Call, walls: Walls | None, base: str, readable: list[str]) -> None:
        self._call = call
        self._walls = walls
        self._base = base
        self._readable = readable
        self._scratch = confine.SCRATCH

    def watch(self) -> str:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        channel = socket.socket(fileno=self._call.channel)
        try:
            self._scratch = self._new_scratch()
        except OSError as cause:
            channel.send(json.dumps({"failed": str(cause)}).encode())
            os._exit(1)
        failure_read, failure_write = os.pipe()
        guest = os.fork()
        if guest == 0:
            return self._become_guest(failure_write)
        for descriptor in (self._call.stdout, self._call.stderr, self._call.code, failure_write):
            os.close(descriptor)
        report: dict[str, Any] = {}
        try:
            failure = _read_all(failure_read)
            if failure:
                report["failed"] = failure.decode(errors="replace")
            else:
                report["stopped"] = self._wait(guest, channel)
        except Exception as cause:
            report["failed"] = f"its warden failed: {cause!r}"
        report["status"] = self._end_all(guest)
        with contextlib.suppress(BrokenPipeError):  # the call was abandoned
            channel.send(json.dumps(report).encode())
        os._exit(0)

    def _new_scratch(self) -> str:
        """Behind walls the warden's own mount namespace has it: taking that down costs time, after the report."""
        if self._walls is None:
            return tempfile.mkdtemp(dir=self._base)
        Walls.add_scratch(self._call.memory_mb)
        return confine.SCRATCH

    def _become_guest(self, failure: int) -> str:
        try:
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            source = _read_all(self._call.code).decode("utf-8", "surrogatepass")
            for number, descriptor in enumerate(
                (os.open(os.devnull, os.O_RDONLY), self._call.stdout, self._call.stderr)
            ):
                os.dup2(descriptor, number)
            os.dup2(failure, 3)
            os.closerange(4, 1 << 16)
            os.set_inheritable(3, False)
            self._confine()
            os.close(3)
        except BaseException as cause:
            os.write(3, f"{type(cause).__name__}: {cause}".encode()[:4096] or b"unknown")
            os._exit(1)
        return source

    def _confine(self) -> None:
        call, walled = self._call, self._walls is not None
        if not walled and os.geteuid() == 0:
            os.chown(self._scratch, confine.NOBODY, confine.NOBODY)
            confine.become_nobody(keep_administration=False)
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # forgotten with the user
        confine.settle(self._scratch)
        if walled:
            confine.enter_own_user_namespace()
            libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
            confine.limit_processes(call.processes)
        confine.limit(call.timeout_s, call.memory_mb)
        confine.give_up(self._readable, self._scratch, walled=walled)

    def _wait(self, guest: int, channel: socket.socket) -> str:
        """Wait until the guest ends by itself, or is to be stopped; return the reason."""
        ended = os.pidfd_open(guest)
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        poller.register(channel, select.POLLIN)  # the parent stops the call, or has ended
        most = self._call.memory_mb << 20
        quota = Quota(self._scratch, most, guest)
        deadline = time.monotonic() + self._call.timeout_s
        while (left := deadline - time.monotonic()) > 0:
            happened = {descriptor for descriptor, _ in poller.poll(1000 * min(left, _WATCH_S))}
            if ended in happened:
                return ""
            if happened:
                return "asked"
            if self._walls is not None:
                _reap(guest)
                if family.resident_bytes(self._walls.proc, "self") > most:
                    return "memory"
            elif quota.is_exceeded():
                return "memory"
        return "timeout"

    def _end_all(self, guest: int) -> int:
        """Kill all leftover processes of the call; return the guest's wait status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1 if self._walls is not None else guest, signal.SIGKILL)
        status = os.waitpid(guest, 0)[1]
        while self._walls is not None:
            try:
                os.wait()
            except ChildProcessError:
                break
        if self._walls is None:
            remove_all(self._scratch)
        return status


def _reap(guest: int) -> None:
    """Take note of orphans that ended, which would count as processes until then; the guest is left for later."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == guest:
            return
        os.waitpid(found.si_pid, 0)


def _read_all(descriptor: int) -> bytes:
    chunks: list[bytes] = []
    while chunk := os.read(descriptor, 1 << 20):
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks)
