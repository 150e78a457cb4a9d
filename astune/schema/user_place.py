"""The place in the user's own code where something was raised or waits, which is where they will look first."""

from __future__ import annotations

import bdb
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_FOREIGN = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
_INSTALLED = {"site-packages", "dist-packages"}


def is_users(filename: str) -> bool:
    """Return whether a frame's file is neither ours nor of the standard library nor installed."""
    path = Path(filename)
    if filename.startswith("<") or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not any(folder in path.parents for folder in _FOREIGN)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place_in(frame: FrameType) -> str:
    """`agent.py:12, in execute`."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def place_of(cause: BaseException) -> str:
    """` (file:line)` of the innermost frame of the user's; empty where there is none."""
    own = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_users(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def described(cause: BaseException) -> str:
    """`KeyError: 'answer'`, and the kind alone of one that says nothing."""
    said = str(cause)
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__


def causes_of(failure: BaseException | None) -> Iterator[BaseException]:
    """The failure, what it was raised from, and so on."""
    while failure is not None:
        yield failure
        failure = failure.__cause__


def left_debugger(failure: BaseException) -> bool:
    """Return whether it comes from quitting pdb."""
    return any(isinstance(cause, bdb.BdbQuit) for cause in causes_of(failure))
