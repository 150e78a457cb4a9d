"""Location in the user's own code where an exception was raised or a call waits, for error messages."""

from __future__ import annotations

import bdb
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_FOREIGN = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
_MAX_SHOWN = 200
_INSTALLED = {"site-packages", "dist-packages"}


def is_users(filename: str) -> bool:
    """Return whether a frame's file belongs to the user: not ours, not the standard library, not installed."""
    path = Path(filename)
    if filename.startswith("<") or not _INSTALLED.isdisjoint(path.parts):
        return False
    return not any(folder in path.parents for folder in _FOREIGN)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def place_in(frame: FrameType) -> str:
    """Format a location as `agent.py:12, in execute`."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def place_of(cause: BaseException) -> str:
    """Format the innermost user frame of an exception as ` (file:line)`; empty if there is none."""
    own = [frame for frame in traceback.extract_tb(cause.__traceback__) if is_users(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def described(cause: BaseException) -> str:
    """Format an exception as `KeyError: 'answer'`; only the type if it has no message."""
    message = str(cause)
    return f"{type(cause).__name__}: {message}" if message else type(cause).__name__


def own_code(cause: Exception, owner: str) -> str:
    """Return the hint for an exception of the code of `owner`, such as a workflow."""
    if isinstance(cause, TypeError | AttributeError) and "coroutine" in str(cause):
        return "an async call needs `await`; code that is not async calls the synchronous method, such as proxy.chat"
    return f"this is in the {owner}'s own code, or in what it calls"


def shown_value(value: object) -> str:
    """Format a value of a user's code in at most 200 characters, whatever it is."""
    try:
        return repr(value)[:_MAX_SHOWN]
    except Exception:  # a whole number of more than 4,300 digits, or a repr that fails
        return f"a value of type {type(value).__name__} that cannot be shown"


def causes_of(failure: BaseException | None) -> Iterator[BaseException]:
    """Yield the failure, its cause, and so on."""
    while failure is not None:
        yield failure
        failure = failure.__cause__


def left_debugger(failure: BaseException) -> bool:
    """Return whether the failure comes from quitting pdb."""
    return any(isinstance(cause, bdb.BdbQuit) for cause in causes_of(failure))
