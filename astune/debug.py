"""Breakpoints by tag: `bp("TAG1")` stops only where `--db='TAG1|TAG2'` has armed it, and costs nothing otherwise.

    from astune.debug import bp

    async def execute(self, task, proxy):
        reply = await proxy.achat(messages)
        bp("REPLY")

A debugger that is attached (VS Code, PyCharm's debugpy) stops in the caller. Without one, a process with a terminal
opens pdb; one without (a Ray worker, a service) waits for a debugger on a port of its own, and says which. Tags are
inherited by child processes through the environment.

The module can be called, too: `astune.debug("my_agent.yaml")` is `astune.app.debug`.
"""

from __future__ import annotations

import bdb
import os
import pdb
import re
import sys
import time
from functools import cache
from types import FrameType, ModuleType
from typing import Any

from astune.schema import ConfigError, start_in_thread

VARIABLE = "ASTUNE_DB"
_LOOKS_S = 0.05
_gave_up: list[bool] = []
"""Not empty once waiting for a debugger is over. An event would deadlock: a signal handler that sets one waits for the
lock that the interrupted thread holds in `wait`."""


def arm(tags: str) -> None:
    """Arm breakpoints, as `TAG1|TAG2`, here and in every process that is started from now on.

    Raises:
        ConfigError: there is no tag in it.
    """
    if not _parsed(tags):
        raise ConfigError(f"--db {tags!r} names no tag", hint="name those of your bp(...) calls: --db='TAG1|TAG2'")
    os.environ[VARIABLE] = tags
    _gave_up.clear()


def armed() -> frozenset[str]:
    return _parsed(os.environ.get(VARIABLE, ""))


def bp(tag: str) -> None:
    """Stop here if `tag` is armed."""
    if tag in armed():
        _stop(sys._getframe(1), tag)


def is_at_prompt(frame: FrameType) -> bool:
    """Whether this frame is pdb's prompt."""
    return frame.f_code.co_name == "_cmdloop" and isinstance(frame.f_locals.get("self"), bdb.Bdb)


def detach() -> None:
    """Detach a debugger, if there is one: threads that it has stopped continue, and one that waits for it gives up.
    Giving up is a flag and not an exception from a signal handler, which pydevd's trace function would swallow.
    """
    _gave_up.append(True)
    pydevd = sys.modules.get("pydevd")
    debugger = pydevd.get_global_debugger() if pydevd is not None else None
    if debugger is not None:  # it takes locks that this thread may hold
        start_in_thread(debugger.dispose_and_kill_all_pydevd_threads, name="astune-detaches")


def _parsed(tags: str) -> frozenset[str]:
    return frozenset(split_at_bars(tags))


def split_at_bars(text: str) -> list[str]:
    """The words of `A|B`; a bar may be escaped, as in a line copied from a Markdown table."""
    return [word for word in map(str.strip, re.split(r"\\?\|", text)) if word]


def _stop(frame: FrameType, tag: str) -> None:
    if not _debugger_attached():
        if sys.stdin is not None and sys.stdin.isatty():
            pdb.Pdb(nosigint=True).set_trace(frame)  # Ctrl-C stays the run's
            return
        _wait_for_debugger(tag)
    import pydevd  # pyright: ignore[reportMissingImports] - debugpy brings it, and knows where it is

    pydevd.settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame)


def _debugger_attached() -> bool:
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and debugpy.is_client_connected()


def _wait_for_debugger(tag: str) -> None:
    try:
        import debugpy
    except ModuleNotFoundError:
        raise ConfigError(
            f"the breakpoint {tag} is armed in a process without a terminal, and debugpy is not installed",
            hint="pip install debugpy, and attach to the port that is then named",
        ) from None
    host, port = _listening()
    sys.stderr.write(f"breakpoint {tag}: process {os.getpid()} waits for a debugger on {host}:{port}\n")
    sys.stderr.flush()
    while not debugpy.is_client_connected():
        time.sleep(_LOOKS_S)
        if _gave_up:
            raise bdb.BdbQuit
    debugpy.wait_for_client()


@cache
def _listening() -> tuple[str, int]:
    """The address at which debugpy listens; it does so once in a process."""
    import debugpy

    return debugpy.listen(("127.0.0.1", 0))


class _Callable(ModuleType):
    """Type of this module, which is also the function `astune.debug`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from astune.app import debug

        return debug(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
