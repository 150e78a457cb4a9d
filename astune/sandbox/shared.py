"""Sandbox shared by a process, one per configuration, opened on first use and closed with the process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from astune.config.schema import SandboxConfig
from astune.sandbox.sandbox import Sandbox
from astune.schema import start_in_thread

_lock = threading.Lock()
_opened: dict[SandboxConfig, Future[Sandbox]] = {}


async def shared_sandbox(config: SandboxConfig) -> Sandbox:
    """The sandbox of this configuration, also for several threads and event loops at once. Raises SandboxError if no
    backend works here; the next call tries again."""
    with _lock:
        opening = _opened.get(config)
        if opening is None or (opening.done() and opening.exception() is not None):
            opening = start_in_thread(lambda: asyncio.run(Sandbox.start(config)), name="astune-sandbox")
            _opened[config] = opening
    return await asyncio.shield(asyncio.wrap_future(opening))
