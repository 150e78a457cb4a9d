"""`astune`, and pytest's workers, in forks of one process that has imported what training needs.

Importing that takes longer than most of our runs. A fork is a process of its own, with the folder, environment,
standard streams and arguments of a command typed in a shell; it shares its hash seed with the other forks. Where a
variable that libraries read as they are imported has changed, there are no forks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = "from astune.cli import main; main()"
SERVER = "import warm_commands; exec(warm_commands.serve())"
IMPORTED = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "astune.cli.app",
    "astune.cli._doctor",
    "astune.cli._past_runs",
    "astune.cli._report",
    "astune.cli._train",
    "astune.backbone.parts",
    "astune.engine.local.in_process",
    "astune.env_service.server",
    "astune.rollout.again",
    "astune.trainer.policy",
    "uvicorn",
)
IMPORTED_BY_TESTS = ("agentscope", "anthropic", "openai", "peft", "schemathesis")
"""What tests import in one or another version, or not at all."""
_ADDRESS = "ASTUNE_TESTS_WARM"
"""The variable with the socket of the process that forks; workers inherit it."""
_FORKS_WITHIN_S = 120.0
_LARGEST_OUTPUT = 1 << 28
_READ_AT_IMPORT = ("OMP_", "GOMP_", "MKL_", "OPENBLAS_", "KMP_", "HF_", "TRANSFORMERS_", "TORCH", "CUDA_", "PYTHON")
KEPT_ENVIRONMENT: dict[str, str] = {}
"""What the process that forks is started with, whichever test needs it first and has changed its own."""


def keep_environment() -> None:
    """Start the process that forks with today's variables, and fork only where those that libraries read are these."""
    KEPT_ENVIRONMENT.update(os.environ)


def serve() -> str:
    """Fork a server for each connection, until the standard input closes; returns in forks, with the code to run."""
    import gc
    from contextlib import suppress
    from importlib import import_module

    from astune.cli import let_openmp_spin_briefly

    let_openmp_spin_briefly()  # as the command does, before torch is loaded
    for name in IMPORTED:
        import_module(name)
    for name in IMPORTED_BY_TESTS:
        with suppress(ImportError):
            import_module(name)
    sys.path.remove(str(Path(__file__).parent))
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    while listener in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            return _serve_one(connection)
        connection.close()
    os._exit(0)


def _serve_one(connection: socket.socket) -> str:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.sendall(b"%d\n" % os.getpid())
    while request := _received(connection):
        order, streams = request
        pid = os.fork()
        if not pid:
            connection.close()
            return _become(order, streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % pid)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _received(connection: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    order, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    return (json.loads(order), streams) if order else None


def _become(order: dict[str, object], streams: list[int]) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(str(order["folder"]))
    os.environ.clear()
    os.environ.update(order["environment"])  # type: ignore[arg-type]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = ["-c", *map(str, order["arguments"])]  # type: ignore[call-overload]
    return str(order["code"])


class WarmProcess:
    """A connection to the process that forks."""

    def __init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(os.environ[_ADDRESS])
        self.pid = self._number(_FORKS_WITHIN_S)

    def run(
        self,
        code: str,
        arguments: Sequence[str],
        streams: Sequence[int],
        *,
        folder: Path,
        environment: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> int:
        """The exit status of `python -c CODE ARGUMENTS` in `folder`, below 0 that of a signal."""
        order = {"code": code, "arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        socket.send_fds(self._server, [json.dumps(order).encode()], streams)
        pid = self._number(_FORKS_WITHIN_S)
        try:
            return self._number(timeout_s)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            self._number(_FORKS_WITHIN_S)
            raise

    def _number(self, timeout_s: float | None) -> int:
        self._server.settimeout(timeout_s)
        return int(self._server.recv(64))


class WarmCommands:
    """`astune` in forks."""

    def __init__(self) -> None:
        start_warm_process()
        self._process = WarmProcess()
        self.pid = self._process.pid

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Whether libraries that read `environment` as they are imported would be those of the forks."""
        return _read_at_import(environment) == _read_at_import(KEPT_ENVIRONMENT)

    def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        code: str = COMMAND,
    ) -> tuple[int, str, str]:
        """The exit status of `astune ARGUMENTS`, or of `code`, in `folder`, below 0 that of a signal; what it wrote."""
        with open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            status = self._process.run(
                code, arguments, streams, folder=folder, environment=environment, timeout_s=timeout_s
            )
            return status, *(os.pread(file.fileno(), _LARGEST_OUTPUT, 0).decode() for file in (out, err))


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}


@cache
def warm_commands() -> WarmCommands:
    """Those of this process, until it ends."""
    return WarmCommands()


def has_warm_process() -> bool:
    return _ADDRESS in os.environ


def start_warm_process() -> None:
    """Start the process that forks, unless there is one; it ends with this process."""
    if has_warm_process():
        return
    folder = tempfile.TemporaryDirectory(prefix="astune-warm-")
    address = os.path.join(folder.name, "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        _OURS.append(
            (
                folder,
                subprocess.Popen(
                    [sys.executable, "-c", SERVER, str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    env={**KEPT_ENVIRONMENT, "PYTHONPATH": path},
                    cwd="/",
                    pass_fds=[listener.fileno()],
                ),
            )
        )
    os.environ[_ADDRESS] = address


_OURS: list[tuple[tempfile.TemporaryDirectory[str], subprocess.Popen[bytes]]] = []
"""Kept until this process ends: at the end of its standard input the process that forks ends."""

STAND_IN = f"{sys.executable} -E -S {__file__}"
"""A program that is called as Python with `-c CODE`, and runs the code in a fork that has its streams."""

if __name__ == "__main__":
    os._exit(WarmProcess().run(sys.argv[-1], [], [0, 1, 2], folder=Path.cwd(), environment=os.environ))
