"""Tracebacks of failed episodes, starting at the user's code."""

from __future__ import annotations

import traceback

from astune.schema import AstuneError, causes_of, is_users


def users_traceback(failure: BaseException) -> str:
    """Format the traceback of an exception of the user's code, without outer frames; empty if it was raised
    elsewhere."""
    for cause in causes_of(failure):
        trace = cause.__traceback__
        while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        if trace is not None and (cause.__cause__ is None or not isinstance(cause, AstuneError)):
            formatted = traceback.TracebackException(type(cause), cause.with_traceback(trace), trace)
            return "".join(formatted.format()).rstrip()
    return ""
