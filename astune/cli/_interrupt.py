"""Ctrl-C: the first one ends a run cleanly after what cannot be left half done, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from astune.cli._errors import EXIT_INTERRUPTED, Interrupted

_SHOW_CURSOR = "\x1b[?25h"


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or cancel on the first SIGINT or SIGTERM and wait for what the work does then.

    A second signal ends the process where it stands: the run's records are written so that this loses nothing that
    was acknowledged.

    Raises:
        Interrupted: a signal came, and the work ended because of it.
    """
    signals = 0
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            _leave_at_once()
        sys.stderr.write("\nending cleanly, which may take a moment; Ctrl-C again ends at once\n")
        loop.call_soon_threadsafe(task.cancel)

    async def supervised() -> None:
        nonlocal loop, task
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            await task
        except asyncio.CancelledError:
            if not signals:
                raise
            raise Interrupted from None
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    asyncio.run(supervised())


def _leave_at_once() -> None:
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)  # the live display hides it
        sys.stdout.flush()
    os._exit(EXIT_INTERRUPTED)
