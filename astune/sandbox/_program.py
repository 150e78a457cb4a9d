"""The backends that start an interpreter for each call: bubblewrap, and rlimits alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from astune.config.schema import SandboxLimits
from astune.sandbox._interpreter import FOLDER, command, environment, readable_folders
from astune.sandbox._output import Output
from astune.sandbox.base import EndedBy, SandboxResult, result_of
from astune.sandbox.inside.confine import SCRATCH
from astune.sandbox.inside.program import READY
from astune.schema import SandboxError, boundary

_END_S = 15.0
"""Seconds within which a process that was killed has to be gone."""
_LEFT_OVER_S = 0.2
"""Seconds to read what a call wrote last, where a process that it left behind holds the stream open."""


class _ProgramBackend:
    """A process a call, in a session of its own."""

    name: str
    walled: bool

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def _command(self, program: list[str], limits: SandboxLimits) -> list[str]:
        return program

    async def run(self, code: str, limits: SandboxLimits, *, name: str) -> SandboxResult:
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[EndedBy] = loop.create_future()
        output = Output(limits.output_kb << 10, when_full=lambda: _settle(stopped, "output"))
        ready_read, ready_write = os.pipe()
        scratch = tempfile.mkdtemp(prefix="astune-sandbox-")
        process: asyncio.subprocess.Process | None = None
        try:
            with tempfile.TemporaryFile() as file:
                file.write(code.encode("utf-8", "surrogatepass"))
                file.seek(0)
                spec = {"walled": self.walled, "scratch": scratch, "ready": ready_write}
                spec |= limits.model_dump(include={"timeout_s", "memory_mb", "processes"})
                async with boundary(SandboxError, f"starting {self.name}", timeout_s=_END_S):
                    process = await asyncio.create_subprocess_exec(
                        *self._command(command("program", spec), limits),
                        stdin=file,
                        stdout=output.write_ends[0],
                        stderr=output.write_ends[1],
                        env=environment(),
                        pass_fds=[ready_write],
                        start_new_session=True,
                    )
            output.let_go()
            ended = asyncio.ensure_future(process.wait())
            await asyncio.wait([ended, stopped], timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                _settle(stopped, "timeout")
            _end_group(process)
            async with boundary(SandboxError, f"the end of {name} in the sandbox", timeout_s=_END_S):
                await ended
            await asyncio.wait([asyncio.ensure_future(output.ended())], timeout=_LEFT_OVER_S)
        finally:
            os.close(ready_write)
            if process is not None:
                _end_group(process)
            output.close()
            shutil.rmtree(scratch, ignore_errors=True)
            was_ready = os.read(ready_read, len(READY)) == READY
            os.close(ready_read)
        stdout, stderr = output.streams()
        if not was_ready and not stopped.done():
            raise SandboxError(f"{self.name} could not run {name}: {stderr.decode(errors='replace').strip()[-500:]}")
        return result_of(
            _wait_status(process.returncode or 0), stopped.result() if stopped.done() else None, stdout, stderr
        )


class BubblewrapBackend(_ProgramBackend):
    """Namespaces made by the program bwrap; the interpreter inside adds limits, Landlock and the system call filter."""

    name = "bubblewrap"
    walled = True

    async def start(self) -> None:
        if shutil.which("bwrap") is None:
            raise SandboxError("bwrap is not installed")

    def _command(self, program: list[str], limits: SandboxLimits) -> list[str]:
        return ["bwrap", *_namespaces(), *_tree(limits), "--die-with-parent", "--chdir", "/", "--", *program]


class RlimitsBackend(_ProgramBackend):
    """Limits and a clean environment, and no isolation: files, network and processes of the user are within reach."""

    name = "rlimits"
    walled = False


def _namespaces() -> list[str]:
    """As root, no namespace of users: root inside would be the machine's root, whom no limit of processes binds. The
    interpreter inside changes to nobody instead, for which it is left the capabilities."""
    kinds = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if os.geteuid() != 0:
        return [*kinds, "--unshare-user"]
    kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN")
    return [*kinds, *(word for capability in kept for word in ("--cap-add", capability))]


def _tree(limits: SandboxLimits) -> list[str]:
    tree: list[str] = ["--perms", "1777", "--size", str(limits.memory_mb << 20), "--tmpfs", SCRATCH]
    for folder in (*readable_folders(), str(FOLDER / "inside")):
        path = Path(folder)
        if path.is_symlink() and len(path.parts) == 2:  # /lib -> usr/lib
            tree += ["--symlink", os.readlink(path), folder]
        else:
            tree += ["--ro-bind", folder, folder]
    if not any(folder.startswith("/tmp/") for folder in readable_folders()):
        tree += ["--symlink", SCRATCH, "/tmp"]
    return [*tree, "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]


def _settle(stopped: asyncio.Future[EndedBy], reason: EndedBy) -> None:
    if not stopped.done():
        stopped.set_result(reason)


def _end_group(process: asyncio.subprocess.Process) -> None:
    """The process and its session's first group; what left both, only a PID namespace ends."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait_status(returncode: int) -> int:
    """The wait status; bwrap says 128 + n of a process that signal n ended, as shells do."""
    if returncode > 128:
        return returncode - 128
    return -returncode if returncode < 0 else returncode << 8
