"""The guest: the code itself, run as `__main__` in a process that was confined before. It never returns."""

from __future__ import annotations

import atexit
import mmap
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a program that starts for each call imports no more than it needs
    from typing import NoReturn

FILE_NAME = "main.py"
"""File name of the code in tracebacks."""


def run(source: str) -> NoReturn:
    """Run the code and end the process as an interpreter would: threads, atexit, buffers, exit status.

    Code that ran out of memory is ended by SIGKILL, as the kernel ends such a process: every exit status is the code's.
    """
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.argv = [FILE_NAME]
    reserve = mmap.mmap(
        -1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # so that the report of a MemoryError has room
    status, out_of_memory = 0, False
    try:
        exec(compile(source, FILE_NAME, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as asked:
        status = _asked_status(asked)
    except MemoryError as failure:
        reserve.close()
        _show(failure, source)
        status, out_of_memory = 1, True
    except BaseException as failure:
        _show(failure, source)
        status = 1
    for finish in (_end_threads, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        try:
            finish()
        except BaseException as failure:
            _show(failure, source)
    if out_of_memory:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(status & 0xFF)


def _end_threads() -> None:
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # what the interpreter itself calls


def _asked_status(asked: SystemExit) -> int:
    if asked.code is None or isinstance(asked.code, int):
        return int(asked.code or 0)
    _write(f"{asked.code}\n")
    return 1


def _show(failure: BaseException, source: str) -> None:
    """Print the traceback from the code's own first line on."""
    import linecache
    import traceback

    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    frames = failure.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        if sys.excepthook is sys.__excepthook__:
            _write("".join(traceback.format_exception(type(failure), failure, frames)))
        else:
            sys.excepthook(type(failure), failure, frames)
    except BaseException:  # an exception whose own text fails
        _write(f"{type(failure).__name__}\n")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
    except Exception:  # the code may have replaced sys.stderr
        os.write(2, text.encode(errors="replace"))
