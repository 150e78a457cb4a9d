"""Failures that Trinity's explorer and trainer log and survive: reported to the run server, which ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from astune.backbone.cluster.messages import RunFailed
from astune.backbone.cluster.reports import reports
from astune.schema import RunStoreError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def reporting_failures(method: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Wrap a method so that its failures are reported before they are raised; the end of an iteration is none."""

    @wraps(method)
    async def reporting(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return await method(*arguments, **named)
        except StopAsyncIteration:
            raise
        except Exception as cause:
            error = f"{type(cause).__name__}: {cause}"
            with suppress(RunStoreError):  # the run server knows of a failure already, or is gone
                await asyncio.to_thread(reports().send, RunFailed(error=error))
            raise

    return reporting
