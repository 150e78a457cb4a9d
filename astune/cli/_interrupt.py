"""Ctrl-C: the first one ends a run cleanly after what cannot be left half done, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from astune.cli._errors import EXIT_INTERRUPTED

_SHOW_CURSOR = "\x1b[?25h"


class Interrupts:
    """SIGINT and SIGTERM while this is entered: the first raises KeyboardInterrupt, or cancels the work of `run`.

    A second signal ends the process where it stands, whatever is being done: the run's records are written so that this
    loses nothing that was acknowledged, and guardians end the companions.
    """

    def __init__(self) -> None:
        self._signals = 0
        self._end: Callable[[], object] = _interrupt
        self._former: dict[signal.Signals, Any] = {}

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end, or cancel on the first signal and wait for what the work does then.

        Raises:
            KeyboardInterrupt: a signal came, and the work ended because of it.
        """

        async def supervised() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
            self._end = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                await task
            finally:
                self._end = _interrupt

        try:
            asyncio.run(supervised())
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise KeyboardInterrupt from None

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, cause: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            _leave_at_once()
        sys.stderr.write("\nending cleanly, which may take a moment; Ctrl-C again ends at once\n")
        self._end()


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _leave_at_once() -> NoReturn:
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)  # the live display hides it
        sys.stdout.flush()
    os._exit(EXIT_INTERRUPTED)
