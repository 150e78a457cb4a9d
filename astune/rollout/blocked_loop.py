"""Detection of agent or judge code that blocks the event loop of all episodes; it is named, and stopped at its
deadline.

asyncio's deadlines do not fire while the loop is blocked. A thread checks every second whether the loop responds; if
not, a signal interrupts the main thread, even in a `time.sleep`, and its handler raises in the user's code that is on
the stack. A loop in another thread cannot be interrupted, and is only named.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from astune.debug import is_at_prompt
from astune.schema import DeadlineExceeded, frames_from, is_users, place_in

_LOOKS_S = 1.0
_NAMED_AFTER_S = 5.0
_SIGNAL = getattr(signal, "SIGURG", None)
"""Signal that is ignored by default."""
_HINT = "await slow calls, or write the function without async so that it runs in its own thread"
_PACKAGE = str(Path(__file__).parents[1])
_log = logging.getLogger(__name__)
_one = threading.Lock()


@contextmanager
def watched_loop(deadline_s: float) -> Iterator[None]:
    """Watch this thread's running loop, unless a watcher is already active."""
    if not _one.acquire(blocking=False):
        yield
        return
    try:
        with _Watch(asyncio.get_running_loop(), min(deadline_s, threading.TIMEOUT_MAX)).on():
            yield
    finally:
        _one.release()


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self._loop = loop
        self._deadline_s = deadline_s
        self._thread = threading.get_ident()
        self._signal = _SIGNAL if threading.current_thread() is threading.main_thread() else None
        """Signal that interrupts the thread; None if it cannot be interrupted."""
        self._over = threading.Event()
        self._answered_at = time.monotonic()
        self._named = False

    @contextmanager
    def on(self) -> Iterator[None]:
        former = signal.signal(self._signal, self._on_signal) if self._signal is not None else None
        threading.Thread(target=self._look, name="astune-blocked-loop", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            if self._signal is not None:
                signal.signal(self._signal, former if former is not None else signal.SIG_DFL)

    def _look(self) -> None:
        asked_at = 0.0
        while not self._over.wait(min(_LOOKS_S, self._deadline_s / 4)):
            if asked_at <= self._answered_at:
                asked_at = time.monotonic()
                try:
                    self._loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop was closed
                    return
            blocked_s = time.monotonic() - max(asked_at, self._answered_at)
            if blocked_s > min(_NAMED_AFTER_S, self._deadline_s) and not self._named:
                self._name(blocked_s)
            if blocked_s > self._deadline_s and self._signal is not None:
                signal.pthread_kill(self._thread, self._signal)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._named = False

    def _name(self, blocked_s: float) -> None:
        place = users_place(sys._current_frames().get(self._thread))
        if place is not None:
            self._named = True
            _log.warning("%s has blocked the event loop for %.0f s, and all episodes wait; %s", place, blocked_s, _HINT)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        place = users_place(frame)
        if place is None or self._over.is_set() or not _in_users_code(frame):
            return
        self._answered_at = time.monotonic()  # it gets the same time again to handle the exception
        raise DeadlineExceeded(f"{place} blocked the event loop for more than {self._deadline_s:g} s", hint=_HINT)


def users_place(frame: FrameType | None) -> str | None:
    """Format the location of the user's code that the loop runs, as `agent.py:12, in execute`; None if there is none,
    or in a debugger."""
    place = None
    for each in frames_from(frame):
        if each.f_code.co_name == "_run" and each.f_globals.get("__name__") == "asyncio.events":
            return place
        if is_at_prompt(each) or each.f_globals.get("__name__", "").startswith(("pydevd", "debugpy", "_pydevd")):
            return None
        if place is None and is_users(each.f_code.co_filename):
            place = f"{place_in(each)},"
    return None


def _in_users_code(frame: FrameType | None) -> bool:
    """Return whether the user's code runs, or a library called by it, and not ours, which must not be interrupted."""
    for each in frames_from(frame):
        if is_users(each.f_code.co_filename):
            return True
        if each.f_code.co_filename.startswith(_PACKAGE):
            return False
    return False
