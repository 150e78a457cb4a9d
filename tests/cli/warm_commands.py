"""`astune` in forks of a process that has imported what training needs, which takes longer than most of our runs.

A fork is a process of its own, with the folder, environment, standard streams and arguments of a command typed in a
shell. Where a variable that libraries read as they are imported has changed, there are no forks.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "import warm_commands; warm_commands.serve(); from astune.cli import main; main()"
IMPORTED = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "astune.cli.app",
    "astune.engine.local.in_process",
    "astune.trainer.policy",
)
_FORKS_WITHIN_S = 120.0
_LARGEST_OUTPUT = 1 << 28
_READ_AT_IMPORT = ("OMP_", "GOMP_", "MKL_", "OPENBLAS_", "KMP_", "HF_", "TRANSFORMERS_", "TORCH", "CUDA_", "PYTHON")


def serve() -> None:
    """Fork for each request on the standard input; returns in the forks alone."""
    import gc
    from importlib import import_module

    from astune.cli import let_openmp_spin_briefly

    let_openmp_spin_briefly()  # as the command does, before torch is loaded
    for name in IMPORTED:
        import_module(name)
    sys.path.remove(str(Path(__file__).parent))
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    while request := _received(requests):
        order, streams = request
        pid = os.fork()
        if not pid:
            requests.close()
            _become(order, streams)
            return
        for stream in streams:
            os.close(stream)
        requests.sendall(b"%d\n" % pid)
        requests.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _received(requests: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    order, streams, _, _ = socket.recv_fds(requests, 1 << 20, 2)
    return (json.loads(order), streams) if order else None


def _become(order: dict[str, object], streams: list[int]) -> None:
    os.chdir(str(order["folder"]))
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[arg-type]
    for number, stream in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = ["-c", *map(str, order["arguments"])]  # type: ignore[call-overload]


class WarmCommands:
    """The server's end in the tests' process, started with the tests' environment."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        self._server = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=theirs, env={**os.environ, "PYTHONPATH": path}, cwd="/"
        )
        theirs.close()
        self.pid = self._server.pid
        self._requests = ours
        self._imported_with = _read_at_import()

    def can_run(self) -> bool:
        return _read_at_import() == self._imported_with

    def run(
        self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str, str]:
        """The exit status of `astune ARGUMENTS` in `folder`, below 0 that of a signal, and what it wrote."""
        order = {"folder": str(folder), "arguments": arguments, "environment": dict(environment)}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._requests, [json.dumps(order).encode()], [out.fileno(), err.fileno()])
            pid = self._number(_FORKS_WITHIN_S)
            try:
                status = self._number(timeout_s)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                self._number(_FORKS_WITHIN_S)
                raise
            return status, *(os.pread(file.fileno(), _LARGEST_OUTPUT, 0).decode() for file in (out, err))

    def close(self) -> None:
        self._requests.close()
        self._server.wait()

    def _number(self, timeout_s: float) -> int:
        self._requests.settimeout(timeout_s)
        return int(self._requests.recv(64))


def _read_at_import() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_IMPORT)}


@cache
def warm_commands() -> WarmCommands:
    """Those of this process, until it ends."""
    commands = WarmCommands()
    atexit.register(commands.close)
    return commands
