"""Handling of Ctrl-C: the first ends a run cleanly, the second at once."""

from __future__ import annotations

import asyncio
import bdb
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Self

from astune.debug import detach, is_at_prompt
from astune.schema import DebuggerLeft, frames_from, is_on_loop, is_users, place_in, run_alone

SAYS_WHAT_HOLDS_AFTER_S = 5.0
_EXIT_INTERRUPTED = 128 + signal.SIGINT
_SHOW_CURSOR = "\x1b[?25h"


class Interrupts:
    """Handler of SIGINT and SIGTERM while entered: the first raises KeyboardInterrupt, or cancels the work of `run`.

    A second signal ends the process immediately: the run's records are crash-safe, and guardians end the companions. A
    notebook's kernel, whose event loop is already running, is not ended: there it raises KeyboardInterrupt. Only the
    main thread receives signals: in others this is a no-op.
    """

    def __init__(self) -> None:
        self._signals = 0
        self._has_loop = is_on_loop()  # as in a notebook
        self._over = threading.Event()
        self._end: Callable[[], object] = _interrupt
        self._former: dict[signal.Signals, Any] = {}

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end, or cancel on the first signal and wait for its cleanup.

        Raises:
            KeyboardInterrupt: a signal came, and the work ended because of it; or a debugger was quit.
        """

        async def supervised() -> None:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
            self._end = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                await task
            finally:
                self._end = _interrupt

        try:
            self._run(supervised())
        except DebuggerLeft:
            raise KeyboardInterrupt from None
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise KeyboardInterrupt from None

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in this thread, or in a new one if a loop is already running in it."""
        if self._has_loop:
            run_alone(work, name="astune-run")
        else:
            asyncio.run(work)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._former = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            _interrupt() if self._has_loop else _leave_at_once()
        sys.stderr.write("\nending cleanly, which may take a moment; Ctrl-C again ends at once\n")
        threading.Thread(target=self._say_what_holds, name="astune-interrupts", daemon=True).start()
        if _at_prompt(frame):
            with suppress(KeyboardInterrupt):  # pdb would take it for itself
                self._end()
            raise bdb.BdbQuit
        detach()
        self._end()

    def _say_what_holds(self) -> None:
        if not self._over.wait(SAYS_WHAT_HOLDS_AFTER_S):
            sys.stderr.write(f"still waiting for {_what_runs()}; Ctrl-C again ends at once\n")


async def until_interrupted() -> None:
    """Work for `Interrupts.run` that only a signal ends."""
    await asyncio.Event().wait()


def _at_prompt(frame: FrameType | None) -> bool:
    """Return whether the thread that has the signal is at pdb's prompt."""
    return any(map(is_at_prompt, frames_from(frame)))


def _what_runs() -> str:
    """The user's code that some thread is in, the first thread before others: `agent.py:12, in execute`."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    running = sys._current_frames()
    for ident in sorted(running.keys() & threads.keys(), key=lambda each: threads[each] is not threading.main_thread()):
        for frame in frames_from(running[ident]):
            begins = frame.f_globals.get("__name__") == "__main__"  # the script of the command itself
            if is_users(frame.f_code.co_filename) and not begins:
                return place_in(frame)
    return "what the run does last"


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _leave_at_once() -> NoReturn:
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)  # the live display hides it
        sys.stdout.flush()
    os._exit(_EXIT_INTERRUPTED)
