"""End of the command's process: an agent can neither end it early nor keep it alive."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

_NAMED_AFTER_S = 5.0
_ENDED_AFTER_S = 30.0
_exit_now = os._exit


def refuse_exits() -> None:
    """Make `os._exit` raise SystemExit in user code, as `sys.exit` does, which fails the episode.

    It would end the run in the middle of a step, with the status of its choosing. A forked child ends by it as ever.
    """
    process = os.getpid()

    def refused(status: int) -> NoReturn:
        if os.getpid() == process:
            from astune.schema import is_users  # here, since `--help` needs none of it

            if is_users(sys._getframe(1).f_code.co_filename):
                raise SystemExit(f"os._exit({status}) of the whole process")
        _exit_now(status)

    os._exit = refused


def bound_ending(status: int) -> None:
    """End the process at the latest 30 s from now: an agent's threads that are no daemons would keep it alive."""

    def wait() -> None:
        time.sleep(_NAMED_AFTER_S)
        others = [thread for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
        names = ", ".join(
            f"{thread.name}{_place(thread)}" for thread in others if thread is not threading.main_thread()
        )
        if not names:
            return
        left_s = _ENDED_AFTER_S - _NAMED_AFTER_S
        sys.stderr.write(f"the command is done; waiting {left_s:.0f} s for threads of an agent's own: {names}\n")
        time.sleep(left_s)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _exit_now(status)

    threading.Thread(target=wait, name="astune-ending", daemon=True).start()


def _place(thread: threading.Thread) -> str:
    from astune.schema import frames_from, is_users, place_in

    frames = frames_from(sys._current_frames().get(thread.ident or 0))
    return next((f" ({place_in(frame)})" for frame in frames if is_users(frame.f_code.co_filename)), "")
