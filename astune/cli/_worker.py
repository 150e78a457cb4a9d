"""`astune worker --connect URL -- COMMAND`: plays episodes of a run on another machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from astune.app.console import Console
from astune.app.worker import Worker
from astune.processes._guardian import prctl
from astune.schema import ConfigError
from astune.workflow.program import found_command
from astune.workflow.workers import TOKEN_VARIABLE

PR_SET_DUMPABLE = 4


def work_for(connect: str, token: str | None, command: Sequence[str], parallel: int, memory_mb: int | None) -> int:
    """Play episodes until Ctrl-C or SIGTERM."""
    secret = token or os.environ.get(TOKEN_VARIABLE, "")
    if not secret:
        raise ConfigError("there is no token", hint=f"set {TOKEN_VARIABLE} to that of the run")
    root = connect.rstrip("/").removesuffix("/v1")
    if not root.startswith(("http://", "https://")):
        raise ConfigError(f"--connect: {connect} is no URL", hint="write http://trainer:8183")
    console = Console()
    worker = Worker(root, secret, found_command(command, None), parallel, (memory_mb or 0) * 2**20, console.say)
    prctl(PR_SET_DUMPABLE, 0)  # the agent's programs cannot read the token from this process's memory
    asyncio.run(_until_signal(worker, lambda: console.say(f"working for {root}; Ctrl-C ends it")))
    return 0


async def _until_signal(worker: Worker, on_ready: Callable[[], None]) -> None:
    working = asyncio.ensure_future(worker.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    on_ready()
    with suppress(asyncio.CancelledError):
        await working
