"""The backend that forks each call from a waiting interpreter (`inside/zygote.py`): about a millisecond a call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from astune.config.schema import SandboxLimits
from astune.processes.ending import wait_or_kill
from astune.processes.scratch import Scratch
from astune.sandbox._output import Output
from astune.sandbox.base import SandboxResult, result_of
from astune.sandbox.inside.removal import remove_all
from astune.sandbox.interpreter import command, environment, readable_folders
from astune.schema import SandboxError, boundary

_START_S = 30.0
"""Seconds that the interpreter may take to start; it takes a tenth of one on an idle machine."""
_REPORT_S = 60.0
"""Seconds beyond a call's own limit within which its end is reported; 15 were too few at a load of 13 on two cores."""
_END_S = 15.0
"""Seconds within which the interpreter ends when its socket is closed, before it is killed."""
_MESSAGE_BYTES = 1 << 16


class ZygoteBackend:
    """`walled` with namespaces; else Landlock alone hides files, and code can start neither processes nor threads."""

    def __init__(self, *, walled: bool) -> None:
        self.name = "zygote" if walled else "zygote-landlock"
        self._walled = walled
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Scratch | None = None
        self._starting = threading.Lock()

    async def start(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise SandboxError("it needs Linux")
        if not self._walled and os.geteuid() == 0:
            _require_readable_by_all(readable_folders())
        await asyncio.to_thread(self._ensure_started, None)

    async def run(self, code: str, limits: SandboxLimits, *, name: str) -> SandboxResult:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output = Output(limits.output_kb << 10, when_full=lambda: own_end.shutdown(socket.SHUT_WR))
        try:
            with child_end, tempfile.TemporaryFile() as file:
                file.write(code.encode("utf-8", "surrogatepass"))
                file.seek(0)
                request = limits.model_dump(include={"timeout_s", "memory_mb", "processes"})
                control = await self._send(request, [child_end.fileno(), file.fileno(), *output.write_ends])
            output.let_go()
            own_end.setblocking(False)
            async with boundary(
                SandboxError, f"the report of {name} in the sandbox", timeout_s=limits.timeout_s + _REPORT_S
            ):
                report = await asyncio.get_running_loop().sock_recv(own_end, _MESSAGE_BYTES)
                if report:
                    await output.ended()
        finally:
            own_end.close()  # without a report yet, this ends the call
            output.close()
        return self._result(json.loads(report or _unreported(control)), output, name)

    async def aclose(self) -> None:
        with self._starting:
            self._end()

    def _result(self, report: dict[str, Any], output: Output, name: str) -> SandboxResult:
        if "failed" in report:
            raise SandboxError(f"the sandbox could not run {name}: {report['failed']}")
        stopped = "output" if output.full else report["stopped"] or None
        return result_of(report["status"], stopped, *output.streams())

    async def _send(self, request: dict[str, Any], descriptors: list[int]) -> socket.socket:
        """Send a request to the zygote, restarting it if it has ended; return the socket used."""
        message = json.dumps(request).encode()
        control = self._control
        try:
            control = _alive(control)
            socket.send_fds(control, [message], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            control = await asyncio.to_thread(self._ensure_started, control)
            socket.send_fds(control, [message], descriptors)
        return control

    def _ensure_started(self, dead: socket.socket | None) -> socket.socket:
        """The control socket of a zygote; a new one if it would be `dead`."""
        with self._starting:
            if self._control is dead:
                self._end()
                self._control = self._start()
            return _alive(self._control)

    def _start(self) -> socket.socket:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._scratch = Scratch("sandbox")
        spec = {"base": str(self._scratch.path), "readable": readable_folders(), "walled": self._walled}
        with child_end:
            self._process = subprocess.Popen(
                command("zygote", json.dumps(spec)),
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        own_end.settimeout(_START_S)
        try:
            answer = own_end.recv(_MESSAGE_BYTES)
        except TimeoutError:
            self._process.kill()
            answer = b""
        failed = json.loads(answer).get("failed") if answer else "the interpreter did not start"
        if failed:
            own_end.close()
            raise SandboxError(failed)
        return own_end

    def _end(self) -> None:
        """Close the socket, at which the zygote and all calls end."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            wait_or_kill(self._process, _END_S)
            self._process = None
        if self._scratch is not None:
            remove_all(self._scratch.path)  # its parent process does, unless it was killed
            self._scratch.remove()
            self._scratch = None


def _unreported(control: socket.socket) -> str:
    """Return a substitute for a missing report of a call's warden, which the kernel may kill, with its call, when
    memory runs out.

    While the zygote lives, which sends nothing after its start, its socket is silent and not at its end.
    """
    try:
        control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return json.dumps({"status": int(signal.SIGKILL), "stopped": ""})
    except OSError:
        pass  # it was closed
    return '{"failed": "its zygote has ended"}'


def _alive(control: socket.socket | None) -> socket.socket:
    if control is None:
        raise SandboxError("the sandbox is closed", hint="run code inside `async with Sandbox.open(...)`")
    return control


def _require_readable_by_all(paths: Iterable[str]) -> None:
    """Check that the user nobody, as whom code runs that root starts without a mount namespace, can read the
    interpreter."""
    for path in map(Path, paths):
        closed = [parent for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH]
        if closed:
            raise SandboxError(
                f"without namespaces code runs as nobody, who cannot read {path} because of {closed[0]}",
                hint=f"chmod o+x {closed[0]}",
            )
