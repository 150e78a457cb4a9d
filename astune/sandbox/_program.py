"""Backends that start an interpreter for each call: bubblewrap, and rlimits alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from astune.config.schema import SandboxLimits
from astune.processes.ending import kill_group
from astune.processes.scratch import Scratch
from astune.sandbox._output import Output
from astune.sandbox.base import Backend, EndedBy, SandboxResult, result_of, wait_status
from astune.sandbox.inside import family
from astune.sandbox.inside.confine import DEVICES, SCRATCH
from astune.sandbox.inside.filling import MOST_FILES, Quota
from astune.sandbox.inside.program import READY
from astune.sandbox.inside.removal import remove_all
from astune.sandbox.interpreter import FOLDER, command, environment, readable_folders
from astune.schema import SandboxError, boundary

_END_S = 15.0
"""Seconds within which a process that was killed has to be gone."""
_PROGRAM = Path("/program")
"""The folder in which bubblewrap shows the package `inside`."""
_WATCH_S = 0.05
"""Seconds between looks at the memory of all of a call's processes together."""
_LEFT_OVER_S = 0.2
"""Seconds to read what a call wrote last, where a process that it left behind holds the stream open."""


class _ProgramBackend(Backend):
    """Backend with one process per call, in its own session."""

    _reports_as_shells = False
    """Whether its program reports 128 + n for a process ended by signal n, as shells do."""

    async def run(self, code: str, limits: SandboxLimits, *, name: str) -> SandboxResult:
        stopped: asyncio.Future[EndedBy] = asyncio.get_running_loop().create_future()
        output = Output(limits.output_kb << 10, when_full=lambda: _settle(stopped, "output"))
        ready_read, ready_write = os.pipe()
        proc = family.open_proc() if sys.platform == "linux" else os.open(os.devnull, os.O_RDONLY)
        os.set_blocking(ready_read, False)
        folder = Scratch("sandbox")
        scratch = str(folder.path)
        process: asyncio.subprocess.Process | None = None
        try:
            words = [proc, ready_write, self.name, scratch, limits.timeout_s, limits.memory_mb, limits.processes]
            program = [*map(str, words), *readable_folders()]
            async with boundary(SandboxError, f"starting {self.name}", timeout_s=_END_S):
                process = await self._started(code, self._command(program, limits), output, [proc, ready_write])
            output.let_go()
            ended = asyncio.ensure_future(process.wait())
            await _watch(process.pid, ended, stopped, limits, self._outgrown(process.pid, scratch, limits))
            kill_group(process.pid)  # what left its group, only a PID namespace ends
            async with boundary(SandboxError, f"the end of {name} in the sandbox", timeout_s=_END_S):
                await ended
            await asyncio.wait([asyncio.ensure_future(output.ended())], timeout=_LEFT_OVER_S)
            code_began = _read_ready(ready_read)
            status = wait_status(process.returncode or 0, as_shells=self._reports_as_shells)
        finally:
            if process is not None:
                kill_group(process.pid)
            output.close()
            os.close(ready_write)
            os.close(ready_read)
            os.close(proc)
            remove_all(scratch)
            folder.remove()
        stdout, stderr = output.streams()
        why = stopped.result() if stopped.done() else None
        if not code_began and why is None:
            raise SandboxError(f"{self.name} could not run {name}: {stderr.decode(errors='replace').strip()[-500:]}")
        return result_of(status, why, stdout, stderr)

    def _command(self, program: list[str], limits: SandboxLimits) -> list[str]:
        return command("program", *program)

    def _outgrown(self, process: int, scratch: str, limits: SandboxLimits) -> Callable[[], bool]:
        """Return whether the scratch folder holds too much."""
        return Quota(scratch, limits.memory_mb << 20).is_exceeded

    async def _started(
        self, code: str, words: list[str], output: Output, passed: list[int]
    ) -> asyncio.subprocess.Process:
        with tempfile.TemporaryFile() as file:
            file.write(code.encode("utf-8", "surrogatepass"))
            file.seek(0)
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=file,
                stdout=output.write_ends[0],
                stderr=output.write_ends[1],
                env=environment(),
                pass_fds=passed,
                start_new_session=True,
            )


class BubblewrapBackend(_ProgramBackend):
    """Namespaces made by the program bwrap; the interpreter inside adds limits, Landlock and the system call filter."""

    name = "bubblewrap"
    _reports_as_shells = True

    async def start(self) -> None:
        self._bwrap = shutil.which("bwrap")
        if self._bwrap is None:
            raise SandboxError("bwrap is not installed", hint="sudo apt install bubblewrap")

    def _command(self, program: list[str], limits: SandboxLimits) -> list[str]:
        words = command("program", *program, folder=_PROGRAM)
        return [str(self._bwrap), *_namespaces(), *_tree(limits), "--die-with-parent", "--chdir", "/", "--", *words]

    def _outgrown(self, process: int, scratch: str, limits: SandboxLimits) -> Callable[[], bool]:
        """Return whether there are too many files; the scratch folder's own file system bounds their bytes."""
        return lambda: any(_files_of(inside) > MOST_FILES for inside in family.below(process))


class RlimitsBackend(_ProgramBackend):
    """Limits and a clean environment, and no isolation: files, network and processes of the user are within reach."""

    name = "rlimits"


async def _watch(
    process: int,
    ended: asyncio.Future[int],
    stopped: asyncio.Future[EndedBy],
    limits: SandboxLimits,
    outgrown: Callable[[], bool],
) -> None:
    """Wait until the process ends by itself, or is to be stopped."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.timeout_s
    proc = family.open_proc() if sys.platform == "linux" else None
    try:
        while not ended.done() and not stopped.done():
            left = deadline - loop.time()
            if left <= 0:
                _settle(stopped, "timeout")
            elif outgrown() or (
                proc is not None and family.resident_bytes(proc, str(process)) > limits.memory_mb << 20
            ):
                _settle(stopped, "memory")
            else:
                await asyncio.wait([ended, stopped], timeout=min(left, _WATCH_S), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if proc is not None:
            os.close(proc)


def _namespaces() -> list[str]:
    """Return the namespace options: as root without a user namespace, since root inside would be the machine's root,
    which no limit of processes binds. The interpreter inside changes to the user `nobody` instead, for which it keeps
    the capabilities."""
    kinds = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if os.geteuid() != 0:
        return [*kinds, "--unshare-user"]
    kept = ("CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN")
    return [*kinds, *(word for capability in kept for word in ("--cap-add", capability))]


def _tree(limits: SandboxLimits) -> list[str]:
    folders = readable_folders()
    tree = ["--perms", "1777", "--size", str(limits.memory_mb << 20), "--tmpfs", SCRATCH]
    tree += ["--ro-bind", str(FOLDER / "inside"), f"{_PROGRAM}/inside"]
    for path in map(Path, folders):
        if path.is_symlink() and len(path.parts) == 2:  # /lib -> usr/lib
            tree += ["--symlink", os.readlink(path), str(path)]
            continue
        for parent in reversed(path.parents[:-1]):  # bwrap's own would not be accessible to nobody
            tree += ["--perms", "0755", "--dir", str(parent)]
        tree += ["--ro-bind", str(path), str(path)]
    if not any(folder.startswith("/tmp/") for folder in folders):
        tree += ["--symlink", SCRATCH, "/tmp"]
    devices = [word for device in DEVICES for word in ("--dev-bind", device, device)]
    return [*tree, *devices, "--remount-ro", "/"]


def _files_of(process: str) -> int:
    """Count files in the scratch folder as the process sees it; 0 before it exists."""
    scratch = f"/proc/{process}/root{SCRATCH}"
    try:
        if os.stat(f"/proc/{process}/root").st_dev == os.stat("/").st_dev:
            return 0  # it still sees the machine's own
        system = os.statvfs(scratch)
    except OSError:
        return 0
    return system.f_files - system.f_ffree


def _read_ready(descriptor: int) -> bool:
    """Return whether the code started; if not, confining it failed."""
    try:
        return os.read(descriptor, len(READY)) == READY
    except BlockingIOError:
        return False


def _settle(stopped: asyncio.Future[EndedBy], reason: EndedBy) -> None:
    if not stopped.done():
        stopped.set_result(reason)
